//! Stored transactions: functions by name, with encodable arguments and results.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use ahash::AHasher;
use lotus::{Abort, Transaction, TxnError};
use lotus_protocol::frame;
use lotus_protocol::messages::Kind;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// End of a procedure's run without a result.
#[derive(Debug)]
pub(crate) enum Stop {
    Engine(TxnError),
    /// The encoded error of the transaction's author.
    Rejected(Vec<u8>),
    /// The arguments do not decode.
    Arguments(String),
    /// The result or error does not encode.
    Result(String),
}

impl From<TxnError> for Stop {
    fn from(error: TxnError) -> Self {
        Self::Engine(error)
    }
}

pub(crate) type Running<'t> = Pin<Box<dyn Future<Output = Result<(), Stop>> + 't>>;

/// A stored transaction with its types erased.
pub(crate) trait Procedure: Send + Sync {
    /// Runs one attempt without the commit, and appends the encoded result.
    fn run<'t>(
        &'t self,
        txn: &'t mut Transaction,
        arguments: &'t [u8],
        result: &'t mut Vec<u8>,
    ) -> Running<'t>;
}

/// A registered procedure.
pub(crate) struct Stored {
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    /// Index in the order of registration.
    pub(crate) place: usize,
    pub(crate) procedure: Box<dyn Procedure>,
}

/// The stored transactions of a compute node. The compute nodes of a cluster must have identical
/// stored transactions, because nodes stand in for each other.
///
/// ```
/// use lotus::Transaction;
/// use lotus_server::{Abort, Registry};
/// # const ACCOUNTS: lotus::TableId = lotus::TableId(0);
/// let mut registry = Registry::new();
/// registry.register("withdraw", async |txn: &mut Transaction, (account, sum): (u64, u64)| {
///     let item = txn.add_rw(ACCOUNTS, account)?;
///     txn.execute().await?;
///     let value = txn.value(item).and_then(|value| value.try_into().ok());
///     let balance = u64::from_le_bytes(value.unwrap_or_default());
///     let left = balance.checked_sub(sum).ok_or(Abort::Application("too poor"))?;
///     txn.put(item, &left.to_le_bytes())?;
///     Ok::<u64, Abort<&str>>(left)
/// });
/// ```
#[derive(Clone, Default)]
pub struct Registry {
    procedures: HashMap<Box<str>, Arc<Stored>, BuildHasherDefault<AHasher>>,
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a serializable transaction.
    ///
    /// The function is a body as for [`Cluster::run`](lotus::Cluster::run), and the same function
    /// may serve both: it adds rows, executes, reads, puts. If it returns `Ok`, its changes are
    /// committed and the caller gets the result; if it returns `Err`, no change ever becomes
    /// visible. The function runs anew for every attempt, on a coordinator's thread, which it must
    /// not block.
    ///
    /// A retryable error of the engine that ends an attempt leads to a new attempt, whatever the
    /// function has made of the error; an attempt ended by an error is not committed.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn register<F, A, R, E>(&mut self, name: &str, function: F)
    where
        F: AsyncFn(&mut Transaction, A) -> Result<R, Abort<E>> + Send + Sync + 'static,
        A: DeserializeOwned + 'static,
        R: Serialize + 'static,
        E: Serialize + 'static,
    {
        self.register_as(Kind::Serializable, name, function);
    }

    /// Registers a transaction that only reads: one snapshot, no locks, on any compute node.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn register_read_only<F, A, R, E>(&mut self, name: &str, function: F)
    where
        F: AsyncFn(&mut Transaction, A) -> Result<R, Abort<E>> + Send + Sync + 'static,
        A: DeserializeOwned + 'static,
        R: Serialize + 'static,
        E: Serialize + 'static,
    {
        self.register_as(Kind::ReadOnly, name, function);
    }

    /// Registers a transaction of any kind.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn register_as<F, A, R, E>(&mut self, kind: Kind, name: &str, function: F)
    where
        F: AsyncFn(&mut Transaction, A) -> Result<R, Abort<E>> + Send + Sync + 'static,
        A: DeserializeOwned + 'static,
        R: Serialize + 'static,
        E: Serialize + 'static,
    {
        let procedure = Box::new(Typed { function, types: PhantomData });
        let stored =
            Arc::new(Stored { name: name.into(), kind, place: self.procedures.len(), procedure });
        let before = self.procedures.insert(name.into(), stored);
        assert!(before.is_none(), "two stored transactions are named {name:?}");
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Stored>> {
        self.procedures.get(name)
    }

    /// Returns all stored transactions, sorted by name.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = (&str, &Stored)> {
        let all = self.procedures.iter().map(|(name, stored)| (&**name, &**stored));
        let mut all: Vec<(&str, &Stored)> = all.collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all.into_iter()
    }
}

struct Typed<F, A, R, E> {
    function: F,
    types: PhantomData<fn(A) -> (R, E)>,
}

impl<F, A, R, E> Procedure for Typed<F, A, R, E>
where
    F: AsyncFn(&mut Transaction, A) -> Result<R, Abort<E>> + Send + Sync,
    A: DeserializeOwned,
    R: Serialize,
    E: Serialize,
{
    fn run<'t>(
        &'t self,
        txn: &'t mut Transaction,
        arguments: &'t [u8],
        result: &'t mut Vec<u8>,
    ) -> Running<'t> {
        Box::pin(async move {
            let arguments: A = match postcard::take_from_bytes(arguments) {
                Ok((arguments, [])) => arguments,
                Ok(_) => return Err(Stop::Arguments("something follows them".to_owned())),
                Err(error) => return Err(Stop::Arguments(error.to_string())),
            };
            let unencodable = |error: postcard::Error| Stop::Result(error.to_string());
            match (self.function)(txn, arguments).await {
                Ok(value) => frame::try_write(result, &value).map_err(unencodable),
                Err(Abort::Engine(error)) => Err(Stop::Engine(error)),
                Err(Abort::Application(error)) => {
                    let mut encoded = Vec::new();
                    frame::try_write(&mut encoded, &error).map_err(unencodable)?;
                    Err(Stop::Rejected(encoded))
                }
            }
        })
    }
}
