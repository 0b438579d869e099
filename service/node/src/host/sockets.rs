//! Sockets of a cluster's nodes in a directory of this host.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use lotus_authority::remote::listen_unix;
use lotus_fabric::shm;
use lotus_protocol::stream::LOCAL;
use lotus_server::LocalDoor;

/// The door of compute node `node`, one of `nodes` nodes, for clients on this host.
///
/// # Errors
/// The path is too long, or in use by a process.
pub fn local_door(directory: &Path, node: usize, nodes: usize) -> io::Result<LocalDoor> {
    Ok(LocalDoor {
        listener: listen_unix(&directory.join(client_socket(node)))?,
        nodes: (0..nodes).map(|node| local_address(directory, node)).collect(),
    })
}

/// Address of compute node `node` for clients on this host.
pub fn local_address(directory: &Path, node: usize) -> String {
    format!("{LOCAL}{}", directory.join(client_socket(node)).display())
}

/// Removes a cluster's sockets from the directory, and then the directory if empty. Sockets with a
/// listening process stay: nodes started by another command may run.
pub fn remove_sockets(directory: &Path, nodes: u16) {
    for node in 0..nodes {
        remove_unheard(&directory.join(client_socket(node.into())));
    }
    shm::remove_sockets(directory, nodes);
}

/// Removes a socket without a listening process. A missing socket is no error.
pub fn remove_unheard(socket: &Path) {
    let refused = UnixStream::connect(socket)
        .is_err_and(|error| matches!(error.kind(), io::ErrorKind::ConnectionRefused));
    if refused {
        let _ = fs::remove_file(socket);
    }
}

/// Name of the socket of compute node `index` for applications of this host.
fn client_socket(index: usize) -> String {
    format!("client-{index}.sock")
}
