//! Snapshots of a running cluster, and bringing the cluster to rest before its end: the requests of
//! `lotus cluster snapshot` and `down` to compute nodes, and the nodes' side. Requests go through a
//! [`Mailbox`].
//!
//! A node at rest takes no calls of applications and has answered all earlier calls. The node
//! serves again when the order to rest is taken back ([`Rest`]).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use lotus::{Authority, Cluster, ClusterError, Data};
use lotus_authority::AuthorityError;
use lotus_authority::Version;
use lotus_fabric::env::{Env, Nanos};
use lotus_points::point_here;
use lotus_server::Server;
use serde::{Deserialize, Serialize};
use tracing::{error, info};

use crate::agree::mailbox::{Mailbox, Pending, may_take_part};
use crate::agree::mailbox_server::MailboxServer;
use crate::agree::records::{Record, Stage};
use crate::agree::rest::{Next, Rest};
use crate::application::Notes;
use crate::config::file::ClusterFile;
use crate::config::name::{NodeKind, NodeName};
use crate::config::snapshots::Snapshots;
use crate::host::polling::wait_until;
use crate::snapshots::Snapshot;
use crate::snapshots::marker::{Marker, tell_taken};

/// Time for which a node rests beyond the patience of the command that ordered the rest.
const LONGER: Duration = Duration::from_secs(60);
/// Time that a node may take to come to rest.
const RESTING_PATIENCE: Duration = Duration::from_secs(60);

/// Request to a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Question {
    /// Take a snapshot.
    Take,
    /// Rest for this number of seconds, by the [`Rest`] with this version.
    Rest { secs: u64, version: u64 },
    /// Check at once whether the node may serve again.
    Look,
}

/// Answer of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Answer {
    Taken(Snapshot),
    Resting,
    Serving,
    Failed(String),
}

fn mailbox(node: NodeName) -> Mailbox {
    Mailbox::new("snapshot", node)
}

/// The server for applications, which can be stopped and started.
pub struct StoppableServer {
    open: Box<dyn Fn() -> Result<Server, String>>,
    server: Option<Server>,
}

impl StoppableServer {
    /// Creates a stopped server; `open` starts the server.
    pub fn closed(open: Box<dyn Fn() -> Result<Server, String>>) -> Self {
        Self { open, server: None }
    }

    /// Stops taking calls, and answers calls in flight.
    ///
    /// # Errors
    /// The server's thread has panicked.
    pub fn close(&mut self) -> Result<(), String> {
        let stop = |server: Server| server.stop().map_err(|error| error.to_string());
        self.server.take().map_or(Ok(()), stop)
    }

    /// Starts the server, if it is stopped.
    ///
    /// # Errors
    /// A sentence: a port is taken, or a key cannot be read.
    pub fn open(&mut self) -> Result<(), String> {
        if self.server.is_none() {
            self.server = Some((self.open)()?);
        }
        Ok(())
    }
}

/// The node's side: answers the requests in its mailbox.
pub struct Copier {
    mailbox: Mailbox,
    index: usize,
    cluster: Arc<Cluster>,
    authority: Arc<dyn Authority>,
    snapshots: Snapshots,
    notes: Arc<dyn Notes>,
    applications: Option<Rc<RefCell<StoppableServer>>>,
    env: Env,
    /// The order to rest, and its expiry; `None` for good.
    resting: Option<(Rest, Option<Nanos>)>,
    under_way: Option<(Version, JoinHandle<Result<Snapshot, String>>)>,
    /// A taken snapshot, to be reported once all nodes can learn of it.
    unreported: Option<(Version, Snapshot)>,
    /// Mark of this host.
    marker: Marker,
}

impl Copier {
    /// Creates the copier of compute node `node`; `cluster` is the node's part of the cluster.
    pub fn new(
        node: NodeName,
        cluster: &Arc<Cluster>,
        authority: &Arc<dyn Authority>,
        snapshots: &Snapshots,
        notes: Arc<dyn Notes>,
        applications: Option<&Rc<RefCell<StoppableServer>>>,
        marker: Marker,
    ) -> Self {
        Self {
            mailbox: mailbox(node),
            index: usize::from(node.index),
            cluster: Arc::clone(cluster),
            authority: Arc::clone(authority),
            snapshots: snapshots.clone(),
            notes,
            applications: applications.map(Rc::clone),
            env: cluster.machines().outside(),
            resting: None,
            under_way: None,
            unreported: None,
            marker,
        }
    }

    /// Starts a snapshot on a separate thread: the daemon must go on polling.
    fn take(&self) -> Result<JoinHandle<Result<Snapshot, String>>, String> {
        let (cluster, authority) = (Arc::clone(&self.cluster), Arc::clone(&self.authority));
        let (snapshots, notes) = (self.snapshots.clone(), Arc::clone(&self.notes));
        let taking = self
            .env
            .spawn("lotus-snapshot", move || snapshots.take(&cluster, &*authority, &*notes));
        taking.map_err(|error| format!("could not start a thread: {error}"))
    }

    /// Reports the taken snapshot, once this host has recorded it and all nodes can learn of it
    /// (I352): so the cluster never begins with an older snapshot unnoticed.
    fn report(&mut self, authority: &dyn Authority) {
        let node = NodeName::compute(self.index as u16);
        let marker = &mut self.marker;
        let told = |(_, snapshot): &mut (Version, Snapshot)| {
            tell_taken(node, snapshot, authority).is_ok() && marker.write(authority).is_ok()
        };
        let Some((version, snapshot)) = self.unreported.take_if(told) else { return };
        self.mailbox.answer(authority, version, &Answer::Taken(snapshot));
        point_here!(self.index as u16, SnapshotReported);
    }

    fn until(&self, rest: Rest) -> (Rest, Option<Nanos>) {
        (rest, rest.secs.map(|secs| self.env.now().after(Duration::from_secs(secs))))
    }

    /// Serves again once the order to rest is taken back; takes the order back itself when the
    /// ordered time is over. Rests on while the authority does not answer.
    fn look_for_the_end(&mut self, authority: &dyn Authority) {
        let Some((rest, until)) = self.resting else { return };
        let Ok(said) = Rest::read(authority) else { return };
        let is_late = until.is_some_and(|until| self.env.now() >= until);
        let serves = match rest.next(said, is_late) {
            Next::Wait => false,
            Next::RestFor(said) => {
                self.resting = Some(self.until(said));
                false
            }
            Next::TakeBack => rest.end(authority).is_ok(),
            Next::Serve => true,
        };
        if serves && let Err(why) = self.serve() {
            error!("{why}");
        }
    }

    fn rest(&mut self, rest: Rest) -> Result<Answer, String> {
        // Calls in flight would wait for the memory node, and block the daemon's loop here.
        if let Some(silent) = self.cluster.silent_memory(self.index).first() {
            return Err(format!("memory node {silent} does not answer"));
        }
        if let Some(server) = &self.applications {
            server.borrow_mut().close()?;
        }
        self.resting = Some(self.until(rest));
        info!("resting: nothing is taken from applications");
        self.cluster.settle().map_err(|error| error.to_string())?;
        point_here!(self.index as u16, Rested);
        Ok(Answer::Resting)
    }

    fn serve(&mut self) -> Result<(), String> {
        // If the server cannot be started, the node still rests and tries again at the next look.
        if let Some(server) = &self.applications {
            server.borrow_mut().open()?;
        }
        if self.resting.take().is_some() {
            info!("serving again");
        }
        Ok(())
    }
}

impl MailboxServer for Copier {
    fn find(&mut self, rest: Rest) {
        self.resting = Some(self.until(rest));
    }

    fn look(&mut self, authority: &dyn Authority) {
        if let Some((version, taking)) = self.under_way.take_if(|(_, taking)| taking.is_finished())
        {
            let panicked = Err("it panicked while it took a snapshot".to_owned());
            match taking.join().unwrap_or(panicked) {
                Ok(snapshot) => {
                    info!("a snapshot {}", snapshot.in_words());
                    self.unreported = Some((version, snapshot));
                }
                Err(why) => {
                    error!("{why}");
                    self.mailbox.answer(authority, version, &Answer::Failed(why));
                }
            }
        }
        self.report(authority);
        self.look_for_the_end(authority);
        if self.under_way.is_some() || self.unreported.is_some() {
            return;
        }
        let Some((version, question)) = self.mailbox.next(authority) else { return };
        let answer = match question {
            Question::Take => match self.take() {
                Ok(taking) => return self.under_way = Some((version, taking)),
                Err(why) => Err(why),
            },
            Question::Rest { secs, version } => self.rest(Rest::told(version, secs)),
            Question::Look => {
                self.look_for_the_end(authority);
                Ok(if self.resting.is_some() { Answer::Resting } else { Answer::Serving })
            }
        };
        self.mailbox.answer(authority, version, &answer.unwrap_or_else(Answer::Failed));
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        if let Some((_, taking)) = self.under_way.take() {
            // The result is not needed, but the thread uses the cluster.
            let _ = taking.join();
        }
    }
}

/// Reason for a missing answer.
#[derive(Clone, PartialEq, Eq, Debug)]
enum AskError {
    /// The node no longer takes part, and commits nothing.
    Out(String),
    /// Any other reason.
    Failed(String),
}

impl AskError {
    fn in_words(self) -> String {
        match self {
            Self::Out(why) | Self::Failed(why) => why,
        }
    }
}

/// A question that was asked of a node.
struct NodeQuestion<'a> {
    file: &'a ClusterFile,
    authority: &'a dyn Authority,
    node: NodeName,
    pending: Result<Pending, AuthorityError>,
}

impl<'a> NodeQuestion<'a> {
    /// Asks the question, while the node may take part.
    fn of(
        file: &'a ClusterFile,
        authority: &'a dyn Authority,
        node: NodeName,
        question: Question,
        patience: Duration,
    ) -> Self {
        let may_answer = || may_take_part(file, authority, node);
        let pending = mailbox(node).put_while(authority, &question, patience, may_answer);
        Self { file, authority, node, pending }
    }

    /// Waits for the answer, while the node may take part.
    fn wait(self, patience: Duration) -> Result<Answer, AskError> {
        let Self { file, authority, node, pending } = self;
        let may_answer = || may_take_part(file, authority, node);
        let failed = |error: AuthorityError| AskError::Failed(error.to_string());
        let answer = pending.map_err(failed)?.wait_while(authority, patience, may_answer);
        match answer {
            Ok(Answer::Failed(why)) => Err(AskError::Failed(format!("{}: {why}", node.in_words()))),
            Ok(answer) => Ok(answer),
            Err(why) if !may_answer() => Err(AskError::Out(why)),
            Err(why) => Err(AskError::Failed(why)),
        }
    }
}

/// Refuses while data is missing: a snapshot of a part would pass for the whole.
fn check_data(authority: &dyn Authority) -> Result<(), String> {
    match Data::read(authority).map_err(|error| error.to_string())? {
        Data::Loaded => Ok(()),
        Data::Loading { rows, .. } => {
            Err(format!("the cluster has not loaded its data yet ({rows} rows so far)"))
        }
        Data::CutShort { why } => Err(ClusterError::CutShort { why }.to_string()),
    }
}

/// Serving compute nodes, at least one, once all data is loaded.
///
/// # Errors
/// A sentence. A missing answer of the authority about any node is an error: that node may serve.
pub fn serving(file: &ClusterFile, authority: &dyn Authority) -> Result<Vec<NodeName>, String> {
    check_data(authority)?;
    let serves = |stage| matches!(stage, Stage::Opening | Stage::Serving);
    let serving = at_stage(file, authority, serves)?;
    match serving.is_empty() {
        true => Err("no compute node serves".to_owned()),
        false => Ok(serving.into_iter().map(|(node, _)| node).collect()),
    }
}

/// Participating compute nodes whose stage satisfies `is_it`, with their records.
///
/// # Errors
/// A sentence: the authority does not tell of all nodes.
fn at_stage(
    file: &ClusterFile,
    authority: &dyn Authority,
    is_it: impl Fn(Stage) -> bool,
) -> Result<Vec<(NodeName, Record)>, String> {
    let mut found = Vec::new();
    for node in NodeName::all(file).filter(|node| node.kind == NodeKind::Compute) {
        let record = Record::read(node, authority).map_err(|error| error.to_string())?;
        found.extend(record.filter(|record| is_it(record.stage)).map(|record| (node, record)));
    }
    // Read last: a returning node writes its stage before it looks for an order to rest.
    let members = lotus_recovery::membership::read(authority).map_err(|error| error.to_string())?;
    found.retain(|(node, _)| members.is_live(node.id(file)));
    Ok(found)
}

/// Waits until nodes that were told to end have ended: until then they acknowledge transactions in
/// progress.
///
/// # Errors
/// A sentence.
fn await_ends(file: &ClusterFile, authority: &dyn Authority) -> Result<(), String> {
    let mut running = Ok(None);
    wait_until(&Env::real(0), RESTING_PATIENCE, || {
        let ending = at_stage(file, authority, |stage| stage == Stage::Ending);
        let runs = |(_, record): &(NodeName, Record)| record.runs() != Some(false);
        running = ending.map(|ending| ending.into_iter().find(runs));
        !matches!(running, Ok(Some(_)))
    });
    match running? {
        Some((node, _)) => {
            Err(format!("{} was told to end, and has not in {RESTING_PATIENCE:?}", node.in_words()))
        }
        None => Ok(()),
    }
}

/// Asks the first serving compute node for a snapshot; asks the next if a node is expelled
/// meanwhile.
///
/// # Errors
/// A sentence.
pub fn take(
    file: &ClusterFile,
    authority: &dyn Authority,
    patience: Duration,
) -> Result<(NodeName, Snapshot), String> {
    if file.snapshots.is_none() {
        return Err(format!("{} has no [snapshots] directory", file.path.display()));
    }
    let env = Env::real(0);
    let deadline = env.now().after(patience);
    let mut out = String::new();
    for node in serving(file, authority)? {
        let left = deadline.since(env.now());
        let asked = NodeQuestion::of(file, authority, node, Question::Take, left);
        match asked.wait(deadline.since(env.now())) {
            Ok(Answer::Taken(snapshot)) => return Ok((node, snapshot)),
            Ok(answer) => return Err(format!("{} answers {answer:?}", node.in_words())),
            Err(AskError::Out(why)) => out = why,
            Err(AskError::Failed(why)) => return Err(why),
        }
    }
    Err(out)
}

/// Brings all serving compute nodes to rest, and has a node take a snapshot, after which nothing is
/// committed: nodes rest until their end, or until another command lets them serve. If any step
/// fails, the nodes serve again.
///
/// # Errors
/// A sentence.
pub fn take_last(
    file: &ClusterFile,
    authority: &dyn Authority,
    patience: Duration,
) -> Result<(NodeName, Snapshot), String> {
    check_data(authority)?;
    let secs = (patience + LONGER).as_secs();
    let unanswered = |error: AuthorityError| error.to_string();
    let said = Rest::begin(authority, secs).map_err(unanswered)?;
    point_here!(0, RestAgreed);
    let nodes = serving(file, authority);
    let taken = nodes.clone().and_then(|nodes| {
        bring_to_rest(file, &nodes, secs, said, authority)?;
        await_ends(file, authority)?;
        point_here!(0, RestTold);
        take(file, authority, patience)
    });
    let Ok(taken) = taken else {
        // If this fails too, a node takes the order back when the ordered time is over.
        let _ = said.end_patiently(authority);
        for node in nodes.unwrap_or_default() {
            // An unreachable node serves again without the question.
            let asked = NodeQuestion::of(file, authority, node, Question::Look, RESTING_PATIENCE);
            let _ = asked.wait(RESTING_PATIENCE);
        }
        return taken;
    };
    match said.for_good(authority) {
        Ok(_) => Ok(taken),
        Err(AuthorityError::Conflict { .. }) => {
            let why = "it took longer than the compute nodes rest, or another command has said \
                       otherwise, and they may serve again";
            Err(format!("a snapshot {}, but {why}", taken.1.in_words()))
        }
        Err(error) => Err(unanswered(error)),
    }
}

/// Asks every node, then waits for the answers. A node expelled meanwhile commits nothing.
fn bring_to_rest(
    file: &ClusterFile,
    nodes: &[NodeName],
    secs: u64,
    said: Rest,
    authority: &dyn Authority,
) -> Result<(), String> {
    let question = Question::Rest { secs, version: said.version() };
    let ask =
        |node: &NodeName| NodeQuestion::of(file, authority, *node, question, RESTING_PATIENCE);
    let asked: Vec<NodeQuestion<'_>> = nodes.iter().map(ask).collect();
    asked.into_iter().try_for_each(|asked| match asked.wait(RESTING_PATIENCE) {
        Ok(_) | Err(AskError::Out(_)) => Ok(()),
        Err(why) => Err(why.in_words()),
    })
}

/// Takes back an order to rest for good, of a command that has not ended all nodes. Returns whether
/// there was such an order.
///
/// # Errors
/// A sentence: the authority does not answer, or another command is at work.
pub fn let_serve(authority: &dyn Authority) -> Result<bool, String> {
    let unanswered = |error: AuthorityError| error.to_string();
    match Rest::read(authority).map_err(unanswered)? {
        Some(order) if order.secs.is_none() => match order.end_patiently(authority) {
            Err(AuthorityError::Conflict { .. }) => {
                Err("another command ends this cluster, or lets it serve".to_owned())
            }
            outcome => outcome.map(|()| true).map_err(unanswered),
        },
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lotus_authority::EmbeddedAuthority;
    use lotus_authority::testing::{Question as AuthorityQuestion, QuestionOutcome, TestAuthority};
    use lotus_fabric::ids::Incarnation;
    use lotus_recovery::{Membership, membership};

    use super::*;

    const COMPUTE: [NodeName; 2] = [NodeName::compute(0), NodeName::compute(1)];

    fn file() -> ClusterFile {
        let nodes = "[[memory_node]]\n[[compute_node]]\n[[compute_node]]\n";
        let text = format!("fabric = \"shm\"\nmemory = \"64M\"\n{nodes}");
        ClusterFile::parse(Path::new("c.toml"), &text, None).expect("it is whole")
    }

    /// Record of a process of another host.
    fn record(stage: Stage) -> Record {
        let record = Record::of_this_process(stage).expect("there is /proc");
        Record { space: "another".to_owned(), ..record }
    }

    /// A cluster of which compute node 0 serves, and node 1 is at this stage.
    fn cluster(file: &ClusterFile, stage: Stage) -> TestAuthority {
        let authority = EmbeddedAuthority::new();
        let life = Incarnation::new(1).expect("it fits");
        let members = Membership::new(COMPUTE.map(|node| (node.id(file), life)));
        membership::found(&authority, &members).expect("nobody was faster");
        for (node, stage) in COMPUTE.into_iter().zip([Stage::Serving, stage]) {
            record(stage).write(node, &authority).expect("it answers");
        }
        TestAuthority::over(authority)
    }

    /// Such a node counted as one that does not serve: it committed beside the last snapshot.
    #[test]
    fn a_node_of_which_the_authority_does_not_tell_is_not_left_out() {
        let file = file();
        let authority = cluster(&file, Stage::Serving);
        let serves = |stage| stage == Stage::Serving;
        let found = at_stage(&file, &authority, serves).expect("it answers");
        assert_eq!(found.iter().map(|(node, _)| *node).collect::<Vec<_>>(), COMPUTE);
        authority.follow(|question, _| match question {
            AuthorityQuestion::Read { key: "node/cn-1" } => QuestionOutcome::QuestionLost,
            _ => QuestionOutcome::Answered,
        });
        assert!(at_stage(&file, &authority, serves).is_err());
    }

    /// A node that was told to end acknowledged calls after the last snapshot.
    #[test]
    fn a_node_that_ends_is_waited_for() {
        let file = file();
        assert_eq!(await_ends(&file, &cluster(&file, Stage::Ended)), Ok(()));
        let authority = cluster(&file, Stage::Ending);
        let mut asked = 0;
        authority.follow(move |question, values| {
            asked += u32::from(matches!(question, AuthorityQuestion::Read { key: "node/cn-1" }));
            if asked == 3 {
                record(Stage::Ended).write(COMPUTE[1], values).expect("it answers");
            }
            QuestionOutcome::Answered
        });
        assert_eq!(await_ends(&file, &authority), Ok(()));
        let last = Record::read(COMPUTE[1], authority.values()).expect("it answers");
        assert_eq!(last.map(|record| record.stage), Some(Stage::Ended));
    }
}
