//! A TCP proxy between a process and its server that can cut, stall and restore connections.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use rollout_base::supervise;

/// Treatment of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProxyMode {
    /// Bytes are forwarded.
    Open,
    /// Bytes are held back, and connections stay open.
    Stalled,
    /// Connections are closed, new ones too.
    Cut,
    /// Closed for good.
    Closed,
}

#[derive(Debug)]
struct ProxyShared {
    mode: Mutex<ProxyMode>,
    changed: Condvar,
    sockets: Mutex<Vec<TcpStream>>,
}

/// A port in front of another port.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<ProxyShared>,
}

impl TcpProxy {
    /// A proxy for a port of 127.0.0.1, which need not be open yet.
    ///
    /// # Panics
    /// When no port is free.
    pub fn for_port(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(ProxyShared {
            mode: Mutex::new(ProxyMode::Open),
            changed: Condvar::new(),
            sockets: Mutex::default(),
        });
        let here = Arc::clone(&shared);
        let serve = move || {
            for client in listener.incoming() {
                let client = client?;
                match *here.state() {
                    ProxyMode::Closed => break,
                    ProxyMode::Cut => continue,
                    ProxyMode::Open | ProxyMode::Stalled => {}
                }
                // No server listens on that port: the client sees its connection close.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                    here.connect(client, server)?;
                }
            }
            Ok::<(), io::Error>(())
        };
        supervise::thread("tcp proxy", serve).expect("a thread");
        Self { address, shared }
    }

    /// The listening port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Closes every connection and each new one until [`Self::restore`].
    pub fn cut(&self) {
        self.shared.set(ProxyMode::Cut);
        self.shared.close();
    }

    /// Holds bytes back until [`Self::restore`], as a network that drops packets.
    pub fn stall(&self) {
        self.shared.set(ProxyMode::Stalled);
    }

    /// Forwards bytes again.
    pub fn restore(&self) {
        self.shared.set(ProxyMode::Open);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.shared.set(ProxyMode::Closed);
        self.shared.close();
        // Wakes the listener; fails harmlessly if it has already ended.
        drop(TcpStream::connect(self.address));
    }
}

impl ProxyShared {
    fn state(&self) -> MutexGuard<'_, ProxyMode> {
        self.mode.lock().expect("not poisoned")
    }

    fn set(&self, state: ProxyMode) {
        *self.state() = state;
        self.changed.notify_all();
    }

    fn close(&self) {
        for end in self.sockets.lock().expect("not poisoned").drain(..) {
            // The other side may have closed it.
            let _closed = end.shutdown(Shutdown::Both);
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream, server: TcpStream) -> io::Result<()> {
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            self.sockets.lock().expect("not poisoned").push(end.try_clone()?);
        }
        // A cut in between has not seen these sockets.
        if matches!(*self.state(), ProxyMode::Cut | ProxyMode::Closed) {
            self.close();
        }
        let ways = [(client.try_clone()?, server.try_clone()?), (server, client)];
        for (from, to) in ways {
            let shared = Arc::clone(self);
            supervise::thread("proxy direction", move || shared.forward(from, to))?;
        }
        Ok(())
    }

    /// Forwards bytes in one direction until either socket is closed, then closes both.
    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let state = self.changed.wait_while(self.state(), |state| *state == ProxyMode::Stalled);
            drop(state.expect("not poisoned"));
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        for end in [from, to] {
            let _closed = end.shutdown(Shutdown::Both);
        }
    }
}
