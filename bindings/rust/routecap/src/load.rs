//! How often each expert was chosen.

use crate::{Step, sys};

/// The phase of a step's rows, by which their load is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Prompts.
    Prefill = sys::ROUTECAP_PHASE_PREFILL as isize,
    /// Tokens that are generated.
    Decode = sys::ROUTECAP_PHASE_DECODE as isize,
}

/// How often each expert of each layer was chosen (`routecap_load`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// Layers of the counts: those of the capturer.
    pub layers: usize,
    /// Experts of the counts: the most of any layer.
    pub experts: usize,
    /// `[phases, layers, experts]`; beyond the experts of a layer they are 0.
    pub counts: Vec<u64>,
    /// Steps that landed with rows and are counted.
    pub steps: u64,
    /// The first of them; 0: none.
    pub first_step: Step,
    /// The last of them.
    pub last_step: Step,
    /// Rows that got their first valid cell.
    pub rows_prefill: u64,
    /// Likewise.
    pub rows_decode: u64,
}

impl Load {
    /// The counts of one layer in one phase, an element for each expert.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn of(&self, phase: Phase, layer: usize) -> &[u64] {
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        let at = (phase as usize * self.layers + layer) * self.experts;
        &self.counts[at..at + self.experts]
    }

    /// What was counted after an earlier reading of the same capturer and tag: a window. Its first
    /// step has at least the ticket that it says.
    ///
    /// # Panics
    ///
    /// If that has another shape, or is later.
    pub fn since(&self, earlier: &Load) -> Load {
        assert!(
            (self.layers, self.experts) == (earlier.layers, earlier.experts)
                && self.steps >= earlier.steps,
            "not an earlier reading of this load"
        );
        let steps = self.steps - earlier.steps;
        Load {
            layers: self.layers,
            experts: self.experts,
            counts: self.counts.iter().zip(&earlier.counts).map(|(now, then)| now - then).collect(),
            steps,
            first_step: match (steps, earlier.steps) {
                (0, _) => Step(0),
                (_, 0) => self.first_step,
                _ => Step(earlier.last_step.0 + 1),
            },
            last_step: if steps > 0 { self.last_step } else { Step(0) },
            rows_prefill: self.rows_prefill - earlier.rows_prefill,
            rows_decode: self.rows_decode - earlier.rows_decode,
        }
    }
}
