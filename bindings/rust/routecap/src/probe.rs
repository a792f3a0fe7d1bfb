//! What a probe finds in a layer's sink.

use std::fmt;

use crate::sys;

/// What a layer's sink holds (`routecap_layer_probe`). Each row is in exactly one of the first
/// three counts.
///
/// One forward of many different tokens shows none of the findings in a layer that is captured
/// well.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub struct LayerProbe {
    found: u32,
    /// No column was written.
    pub rows_unwritten: u32,
    /// Some columns were.
    pub rows_incomplete: u32,
    /// All columns were.
    pub rows_written: u32,
    /// Of those that were written at least in part, with an id out of range.
    pub rows_out_of_range: u32,
    /// Of those that were written, with ids in range: one id twice.
    pub rows_duplicate: u32,
    lowest: i32,
    highest: i32,
}

const _: () = assert!(size_of::<LayerProbe>() == size_of::<sys::routecap_layer_probe>());

impl fmt::Debug for LayerProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (sys::ROUTECAP_PROBE_SILENT, "silent"),
            (sys::ROUTECAP_PROBE_INCOMPLETE, "incomplete"),
            (sys::ROUTECAP_PROBE_OUT_OF_RANGE, "out of range"),
            (sys::ROUTECAP_PROBE_DUPLICATE, "duplicate"),
            (sys::ROUTECAP_PROBE_SEQUENCE, "sequence"),
            (sys::ROUTECAP_PROBE_CONSTANT, "constant"),
            (sys::ROUTECAP_PROBE_REPEATED, "repeated"),
        ];
        let mut found: Vec<String> = names
            .iter()
            .filter(|(bit, _)| self.found(*bit))
            .map(|(_, name)| name.to_string())
            .collect();
        let unknown = names.iter().fold(self.found, |unknown, (bit, _)| unknown & !bit);
        if unknown != 0 {
            found.push(format!("{unknown:#x}"));
        }
        f.debug_struct("LayerProbe")
            .field("found", &found)
            .field("rows_unwritten", &self.rows_unwritten)
            .field("rows_incomplete", &self.rows_incomplete)
            .field("rows_written", &self.rows_written)
            .field("rows_out_of_range", &self.rows_out_of_range)
            .field("rows_duplicate", &self.rows_duplicate)
            .field("range", &self.range())
            .finish()
    }
}

impl LayerProbe {
    fn found(&self, what: u32) -> bool {
        self.found & what != 0
    }

    /// Whether nothing is odd.
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }

    /// No row was written: the tap does not fire (`ROUTECAP_PROBE_SILENT`).
    pub fn is_silent(&self) -> bool {
        self.found(sys::ROUTECAP_PROBE_SILENT)
    }

    /// Some rows were not written, or not all of their columns (`ROUTECAP_PROBE_INCOMPLETE`).
    pub fn is_incomplete(&self) -> bool {
        self.found(sys::ROUTECAP_PROBE_INCOMPLETE)
    }

    /// Ids outside the layer's range: shared experts, local ids or another dtype
    /// (`ROUTECAP_PROBE_OUT_OF_RANGE`).
    pub fn has_out_of_range(&self) -> bool {
        self.found(sys::ROUTECAP_PROBE_OUT_OF_RANGE)
    }

    /// One id twice in a row (`ROUTECAP_PROBE_DUPLICATE`).
    pub fn has_duplicate(&self) -> bool {
        self.found(sys::ROUTECAP_PROBE_DUPLICATE)
    }

    /// Several rows, all of them 0, 1, ... k-1: what a router makes of no logits
    /// (`ROUTECAP_PROBE_SEQUENCE`).
    pub fn is_sequence(&self) -> bool {
        self.found(sys::ROUTECAP_PROBE_SEQUENCE)
    }

    /// Several rows, all with the same ids (`ROUTECAP_PROBE_CONSTANT`).
    pub fn is_constant(&self) -> bool {
        self.found(sys::ROUTECAP_PROBE_CONSTANT)
    }

    /// Several rows, the same in each as in the layer before: one buffer for two layers
    /// (`ROUTECAP_PROBE_REPEATED`).
    pub fn is_repeated(&self) -> bool {
        self.found(sys::ROUTECAP_PROBE_REPEATED)
    }

    /// The findings as C has them, a set of `ROUTECAP_PROBE_*`.
    pub fn bits(&self) -> u32 {
        self.found
    }

    /// The lowest and the highest id of those in range, if there is any.
    pub fn range(&self) -> Option<(u32, u32)> {
        Some((u32::try_from(self.lowest).ok()?, u32::try_from(self.highest).ok()?))
    }
}
