//! Applications over TLS: calls get through, and refused clients are told why.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{ACCOUNTS, Bank, INITIAL, balance, run};
use lotus::Cluster;
use lotus_client::{Client, ConnectError, Kind};
use lotus_protocol::stream::LOCAL;
use lotus_security::{APPLICATIONS, Tls};
use lotus_server::{Config, Key, LocalDoor, Registry, Security, Server, StartError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

const CLUSTER: &str = "orders.lotus";

/// A certificate authority, and a directory for what it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Authority {
    fn new(name: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("lotus-applications-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    /// A certificate of this authority, for a side that trusts `believed`.
    fn sign(&self, name: &str, believed: &Self) -> Security {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = ["own.pem", "own.key"].map(|file| self.directory.join(file));
        fs::write(&files[0], certificate.pem()).unwrap();
        fs::write(&files[1], key.serialize_pem()).unwrap();
        fs::set_permissions(&files[1], fs::Permissions::from_mode(0o600)).unwrap();
        let ca = believed.directory.join("ca.pem");
        Security::Tls(Tls::from_files(&ca, &files[0], &files[1], CLUSTER).unwrap())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

async fn connect(bank: &Bank, security: Security) -> Result<Client, String> {
    let mut config = lotus_client::Config::new(bank.servers[0].address().to_string());
    config.security = security;
    Client::connect(config).await.map_err(|error| error.to_string())
}

#[test]
fn what_an_application_says_goes_through() {
    let ours = Authority::new("through");
    let nodes = ours.sign(CLUSTER, &ours);
    let application = ours.sign(&format!("{APPLICATIONS}{CLUSTER}"), &ours);
    let bank = Bank::open_with(2, |config| config.security = nodes.clone());
    run(async {
        let client = connect(&bank, application).await.unwrap();
        for account in 0..ACCOUNTS {
            let call = client.call("transfer", &(account, (account + 1) % ACCOUNTS, 1_u64));
            let _: u64 = call.at(bank.table, account).await.unwrap();
        }
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
        // Answers of many TLS records each, several at a time.
        let blob = || async {
            let bytes: Vec<u8> = client.call("blob", &200_000_u64).await.unwrap();
            assert_eq!(bytes.len(), 200_000);
        };
        tokio::join!(blob(), blob(), blob(), blob());
        let mut txn = client.transaction(Kind::Serializable);
        let item = txn.add_rw(bank.table, 3_u64);
        txn.execute().await.unwrap();
        assert_eq!(txn.value(item), Some(&INITIAL.to_le_bytes()[..]));
        txn.commit().await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// A Unix socket never leaves the host, and neither side speaks TLS there.
#[test]
fn there_is_no_local_door_beside_tls() {
    let ours = Authority::new("local");
    let door = ours.directory.join("door");
    let cluster = Cluster::embedded().compute_nodes(1).memory_nodes(1).replicas(1);
    let cluster = Arc::new(cluster.lock_table_bytes(1 << 16).start().unwrap());
    let mut config =
        Config::new(TcpListener::bind("127.0.0.1:0").unwrap(), vec!["127.0.0.1:1".to_owned()]);
    config.security = ours.sign(CLUSTER, &ours);
    let nodes = vec![format!("{LOCAL}{}", door.display())];
    let address = nodes[0].clone();
    config.local = Some(LocalDoor { listener: UnixListener::bind(&door).unwrap(), nodes });
    let started = Server::start(cluster, 0, Registry::new(), config);
    assert!(matches!(started, Err(StartError::SealedDoor)));

    let mut config = lotus_client::Config::new(address);
    config.security = ours.sign(&format!("{APPLICATIONS}{CLUSTER}"), &ours);
    let told = run(Client::connect(config)).err().unwrap();
    assert!(matches!(told, ConnectError::Unreachable { .. }), "{told}");
    assert!(told.to_string().contains("TLS is not spoken through Unix sockets"), "{told}");
}

/// The server's side, the client's, and a part of the error.
#[test]
fn who_is_kept_out_is_told_why() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let application = format!("{APPLICATIONS}{CLUSTER}");
    let nodes = ours.sign(CLUSTER, &ours);
    let key = || Security::SharedKey(Key::random().unwrap());
    let plain = Security::default;
    let cases = [
        (&nodes, theirs.sign(&application, &theirs), "was signed by another authority"),
        (&nodes, theirs.sign(&application, &ours), "another authority has signed this side's"),
        // A node's certificate is for nodes, and another cluster's for that one.
        (&nodes, ours.sign(CLUSTER, &ours), "bears another name than is let in there"),
        (&nodes, ours.sign("applications.invoices.lotus", &ours), "bears another name"),
        (&nodes, plain(), "one side demands a shared key or TLS"),
        (&nodes, key(), "one side demands a shared key or TLS"),
        (&plain(), ours.sign(&application, &ours), "the other side does not speak TLS"),
        (&key(), ours.sign(&application, &ours), "the other side does not speak TLS"),
    ];
    for (serves, asks, said) in cases {
        let bank = Bank::open_with(1, |config| config.security = serves.clone());
        let told = run(connect(&bank, asks)).err().expect(said);
        assert!(told.contains(said), "{said}: {told}");
    }
}
