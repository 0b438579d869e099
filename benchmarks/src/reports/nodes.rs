//! Work of one node's NIC for other nodes, as a line for display.

use std::fmt;

use super::report::grouped;
use crate::judge::utilisation::NodeLoad;

impl fmt::Display for NodeLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [inbound, unit, sending, receiving] =
            [self.inbound_busy, self.atomic_unit_busy, self.sending_busy, self.receiving_busy]
                .map(|part| part * 100.0);
        let [reads, writes, swaps, adds] =
            [self.reads, self.writes, self.compare_and_swaps, self.fetch_and_adds].map(grouped);
        write!(
            f,
            "{} node {}: inbound requests {inbound:.1} %, atomic unit {unit:.1} %, link \
             {sending:.1} % sending, {receiving:.1} % receiving; \
             {reads} READ, {writes} WRITE, {swaps} CAS, {adds} FAA",
            self.kind, self.node
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_one_line() {
        let node = NodeLoad {
            node: 2,
            kind: "memory",
            inbound_busy: 0.5,
            atomic_unit_busy: 0.25,
            sending_busy: 0.125,
            receiving_busy: 0.0,
            reads: 1200,
            writes: 34,
            compare_and_swaps: 5,
            fetch_and_adds: 6,
        };
        let text = "memory node 2: inbound requests 50.0 %, atomic unit 25.0 %, link 12.5 % \
                    sending, 0.0 % receiving; 1,200 READ, 34 WRITE, 5 CAS, 6 FAA";
        assert_eq!(node.to_string(), text);
    }
}
