//! The twelve conditions by number, and counts of their checks.

use super::books::WarehouseBook;
use crate::contract::audit::{Check, RowCheck};

/// Summaries of the conditions (clauses 3.3.2.1 to 3.3.2.12).
const CONDITIONS: [&str; 12] = [
    "a warehouse has taken what its districts have",
    "a district's last number is that of its last order and its last new one",
    "the new orders of a district have no gap",
    "the orders of a district have as many lines as they say, in all",
    "an order has no carrier exactly if it is new",
    "every order has as many lines as it says",
    "a line has no delivery date exactly if its order has no carrier",
    "a warehouse has taken what was paid there",
    "a district has taken what was paid there",
    "a customer's balance is what was delivered less what was paid",
    "a district's orders are new, were delivered, or were from the start",
    "a customer's balance and payments make up what was delivered",
];

/// Counts of checked rows for each condition.
#[derive(Debug, Default)]
pub(super) struct Conditions([RowCheck; CONDITIONS.len()]);

impl Conditions {
    /// Counts one warehouse, district, order, line or customer to which condition number
    /// `condition` (from one) applies; `complaint` describes the row if the condition does not
    /// hold.
    pub(super) fn see(
        &mut self,
        condition: usize,
        holds: bool,
        complaint: impl FnOnce() -> String,
    ) {
        self.0[condition - 1].see(holds, complaint);
    }

    pub(super) fn judge_warehouses(&mut self, books: &[WarehouseBook]) {
        for (id, &WarehouseBook { ytd, districts_ytd, paid, .. }) in books.iter().enumerate() {
            self.see(1, ytd == districts_ytd, || {
                format!("warehouse {id} has taken {ytd}, its districts {districts_ytd}")
            });
            self.see(8, ytd == paid, || {
                format!("warehouse {id} has taken {ytd}, and {paid} was paid there")
            });
        }
    }

    pub(super) fn checks(self) -> Vec<Check> {
        let named = (1..).zip(CONDITIONS).map(|(n, says)| format!("tpcc-3.3.2.{n}: {says}"));
        self.0.into_iter().zip(named).map(|(rows, name)| rows.check_all(name)).collect()
    }
}
