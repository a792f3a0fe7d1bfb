//! What a capturer is made with.

use std::ffi::CStr;
use std::fmt;

use crate::declared::SWITCHES;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Result, check};
use crate::layers::{Layers, check_layers, layer_methods, list};
use crate::number::{named, numbers};
use crate::sys;
use crate::{Capturer, DType, Forward, WeightsType};

/// Where the sink is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Backend {
    /// Engines that compute on the CPU (`ROUTECAP_BACKEND_HOST`).
    Host = sys::ROUTECAP_BACKEND_HOST,
    /// NVIDIA GPUs (`ROUTECAP_BACKEND_CUDA`).
    Cuda = sys::ROUTECAP_BACKEND_CUDA,
}

/// What this build and machine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendInfo {
    /// Whether a capturer on this backend can be created; if not, `detail` says why.
    pub available: bool,
    /// How many devices there are; 0 on the host backend.
    pub devices: u32,
    /// One line.
    pub detail: &'static str,
}

impl Backend {
    /// Describe this backend of this build on this machine (`routecap_backend_info`).
    pub fn info(self) -> Result<BackendInfo> {
        let mut info = sys::routecap_backend {
            struct_size: size_of::<sys::routecap_backend>() as u32,
            ..Default::default()
        };
        // SAFETY: `info` has the size that it says.
        check(unsafe { sys::routecap_backend_info(self as i32, &mut info) })?;
        // SAFETY: `detail` is a text in static storage.
        let detail = unsafe { CStr::from_ptr(info.detail) }.to_str().unwrap_or_default();
        Ok(BackendInfo { available: info.available != 0, devices: info.devices as u32, detail })
    }
}

/// What a rank does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Role {
    /// Captures (`ROUTECAP_ROLE_OWNER`).
    #[default]
    Owner = sys::ROUTECAP_ROLE_OWNER,
    /// Tensor-parallel replica: same calls on the forward path as the owner, rows go nowhere
    /// (`ROUTECAP_ROLE_MIRROR`).
    Mirror = sys::ROUTECAP_ROLE_MIRROR,
    /// Off: nothing is allocated or started, every call returns at once (`ROUTECAP_ROLE_DISABLED`).
    Disabled = sys::ROUTECAP_ROLE_DISABLED,
}

numbers! {
    /// What the ids number.
    #[derive(Default)]
    IdSpace, "The one that has this number in C.", value: "The number in C." {
        /// Ids as the router chose them (`ROUTECAP_ID_SPACE_LOGICAL`).
        #[default]
        Logical = ROUTECAP_ID_SPACE_LOGICAL;
        /// Ids of replicas, after load balancing, where nothing else can be had
        /// (`ROUTECAP_ID_SPACE_PHYSICAL`).
        Physical = ROUTECAP_ID_SPACE_PHYSICAL;
    }
}

numbers! {
    /// How the ids of a layer were had.
    #[derive(Default)]
    Provenance, "The one that has this number in C.", value: "The number in C." {
        /// Written or recorded where the router left them (`ROUTECAP_PROVENANCE_CAPTURED`).
        #[default]
        Captured = ROUTECAP_PROVENANCE_CAPTURED;
        /// Chosen again from the router's logits (`ROUTECAP_PROVENANCE_RECOMPUTED`).
        Recomputed = ROUTECAP_PROVENANCE_RECOMPUTED;
    }
}

/// Memory that a capturer of some configuration needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Rows in one page.
    pub page_rows: u32,
    /// Allocated at create: memory of the device.
    pub device_bytes: u64,
    /// Allocated at create: page-locked host memory.
    pub pinned_bytes: u64,
    /// Allocated at create: other host memory, rounded up.
    pub host_bytes: u64,
    /// Of one captured row: ids and validity.
    pub row_bytes: u64,
    /// Of one page, the unit in which requests take memory from the budget: its rows, and 8 bytes
    /// for the tag of each.
    pub page_bytes: u64,
    /// Of one open request before its first row, outside the budget.
    pub request_bytes: u64,
}

/// The configuration of a capturer (`routecap_config`), a builder.
///
/// ```
/// use routecap::Config;
/// # fn main() -> routecap::Result<()> {
/// let (capturer, mut forward) = Config::host().layers(48).k(8).experts(128).rows(8192).create()?;
/// # drop((capturer, forward));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Config {
    raw: sys::routecap_config,
    of: Layers,
    layer_provenance: Vec<i32>,
}

// SAFETY: the pointers of `raw` are NULL until a call fills in those of the vectors.
unsafe impl Send for Config {}
// SAFETY: as above.
unsafe impl Sync for Config {}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = &self.raw;
        let mut shown = f.debug_struct("Config");
        shown.field("backend", named!(raw.backend, Backend: Host, Cuda));
        shown.field("role", named!(raw.role, Role: Owner, Mirror, Disabled));
        shown
            .field("device", &raw.device)
            .field("layers", &raw.layers)
            .field("k", &raw.k)
            .field("experts", &raw.experts);
        shown
            .field("rows", &raw.rows)
            .field("slots", &raw.slots)
            .field("sink_dtype", &DType::of(raw.sink_dtype))
            .field("weights", &WeightsType::of(raw.weights_dtype));
        for (name, flag) in SWITCHES {
            shown.field(name, &(raw.flags & flag != 0));
        }
        shown
            .field("id_space", &IdSpace::of(raw.id_space))
            .field("max_requests", &raw.max_requests);
        shown
            .field("budget_bytes", &raw.budget_bytes)
            .field("layer_map", &self.of.map)
            .field("layer_experts", &self.of.experts)
            .field("layer_k", &self.of.k)
            .field("layer_min_k", &self.of.min_k)
            .field("layer_visit", &self.of.visit);
        let provenance: Vec<_> =
            self.layer_provenance.iter().map(|value| Provenance::of(*value)).collect();
        shown.field("layer_provenance", &provenance).finish()
    }
}

impl Config {
    fn new(backend: Backend) -> Config {
        let mut raw = sys::routecap_config::default();
        // SAFETY: `raw` is a configuration of the size given; with that the call cannot fail.
        unsafe { sys::routecap_config_init(&mut raw, size_of_val(&raw)) };
        raw.backend = backend as i32;
        Config { raw, of: Layers::default(), layer_provenance: Vec::new() }
    }

    /// On the host backend, with the defaults (`routecap_config_init`). Layers, k, experts and rows
    /// remain to be set.
    pub fn host() -> Config {
        Config::new(Backend::Host)
    }

    /// On a CUDA device, by its ordinal, with the defaults. Layers, k, experts and rows remain to
    /// be set.
    pub fn cuda(device: u32) -> Config {
        let mut config = Config::new(Backend::Cuda);
        config.raw.device = i32::try_from(device).unwrap_or(i32::MAX); // no machine has it: refused
        config
    }

    /// Off: a capturer that does nothing, whatever else is set.
    pub fn disabled() -> Config {
        Config::host().role(Role::Disabled)
    }

    /// What this rank does. Default [`Role::Owner`].
    pub fn role(mut self, role: Role) -> Self {
        self.raw.role = role as i32;
        self
    }

    /// Captured (MoE) layers, 1..=[`MAX_LAYERS`](crate::MAX_LAYERS). Required.
    pub fn layers(mut self, layers: u32) -> Self {
        self.raw.layers = layers;
        self
    }

    /// Experts per token, the most of any layer, 1..=[`MAX_K`](crate::MAX_K). Required.
    pub fn k(mut self, k: u32) -> Self {
        self.raw.k = k;
        self
    }

    /// Ids are in `0..experts`, zero experts included; up to [`MAX_EXPERTS`](crate::MAX_EXPERTS).
    /// Required unless [`layer_experts`](Self::layer_experts) is set.
    pub fn experts(mut self, experts: u32) -> Self {
        self.raw.experts = experts;
        self
    }

    /// Sink rows: the most tokens of one forward pass, padding included;
    /// 1..=[`MAX_ROWS`](crate::MAX_ROWS). Required.
    pub fn rows(mut self, rows: u32) -> Self {
        self.raw.rows = rows;
        self
    }

    /// Steps that may be in flight, 1..=[`MAX_SLOTS`](crate::MAX_SLOTS). Default 2; see
    /// [`Forward::issue`].
    pub fn slots(mut self, slots: u32) -> Self {
        self.raw.slots = slots;
        self
    }

    /// Of the library's sink: I16 (default), I32 or I64.
    pub fn sink_dtype(mut self, dtype: DType) -> Self {
        self.raw.sink_dtype = dtype as i32;
        self
    }

    /// Capture the router's weights too, a number for each id, as they are: of this type. Default
    /// none. The ids and weights of a row may take 4096 bytes.
    ///
    /// A cell can have ids without weights. The weights of a cell are missing if its ids are, if
    /// nobody recorded them, or if one of them is NaN.
    pub fn weights(mut self, weights: WeightsType) -> Self {
        self.raw.weights_dtype = weights as i32;
        self
    }

    pub(crate) fn flag(mut self, flag: u32, on: bool) -> Self {
        self.raw.flags = if on { self.raw.flags | flag } else { self.raw.flags & !flag };
        self
    }

    /// What the recorded ids are; travels with every routing. Default logical.
    pub fn id_space(mut self, id_space: IdSpace) -> Self {
        self.raw.id_space = id_space.value();
        self
    }

    /// Requests open at a time. Default 65536.
    pub fn max_requests(mut self, requests: u32) -> Self {
        self.raw.max_requests = requests;
        self
    }

    /// Upper limit of the memory for captured rows, routings included. Default 1 GiB; at least one
    /// page ([`memory`](Self::memory)).
    pub fn budget_bytes(mut self, bytes: u64) -> Self {
        self.raw.budget_bytes = bytes;
        self
    }

    layer_methods!();

    /// `[layers]` how the ids of each layer are had; only recomputed layers may be routed. Default
    /// all captured.
    pub fn layer_provenance(mut self, provenance: &[Provenance]) -> Self {
        self.layer_provenance = provenance.iter().map(|p| p.value()).collect();
        self
    }

    /// In C's form, which borrows the vectors.
    pub(crate) fn raw(&self) -> Result<sys::routecap_config> {
        self.of.check(self.raw.layers)?;
        check_layers("layer_provenance", self.layer_provenance.len(), self.raw.layers)?;
        Ok(sys::routecap_config {
            layer_map: list(&self.of.map),
            layer_experts: list(&self.of.experts),
            layer_k: list(&self.of.k),
            layer_min_k: list(&self.of.min_k),
            layer_visit: list(&self.of.visit),
            layer_provenance: list(&self.layer_provenance),
            ..self.raw
        })
    }

    /// Say how much memory a capturer of this configuration needs, without creating it
    /// (`routecap_config_memory`).
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn memory(&self) -> Result<Memory> {
        let raw = self.raw()?;
        let mut memory = sys::routecap_memory {
            struct_size: size_of::<sys::routecap_memory>() as u32,
            ..Default::default()
        };
        // SAFETY: both structs have the sizes that they say; the tables of `raw` have an entry for
        // each layer.
        check(unsafe { sys::routecap_config_memory(&raw, &mut memory) })?;
        Ok(Memory {
            page_rows: memory.page_rows,
            device_bytes: memory.device_bytes,
            pinned_bytes: memory.pinned_bytes,
            host_bytes: memory.host_bytes,
            row_bytes: memory.row_bytes,
            page_bytes: memory.page_bytes,
            request_bytes: memory.request_bytes,
        })
    }

    /// Create a capturer: the handle that all threads share, and the forward path, which one thread
    /// has (`routecap_capturer_create`).
    ///
    /// Create it before CUDA graphs are captured: all memory of the device and all page-locked
    /// memory is allocated here. Starts one worker thread unless progress is manual.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] for a value that is missing or outside its range;
    /// [`ErrorKind::ShapeMismatch`] for a list that is not as long as there are layers;
    /// [`ErrorKind::NoBackend`], [`ErrorKind::DriverTooOld`],
    /// [`ErrorKind::Device`], [`ErrorKind::Thread`], [`ErrorKind::NoMemory`].
    pub fn create(&self) -> Result<(Capturer, Forward)> {
        let raw = self.raw()?;
        let mut capturer = std::ptr::null_mut();
        // SAFETY: as in `memory`; the tables are copied.
        check(unsafe { sys::routecap_capturer_create(&raw, &mut capturer) })?;
        let backend =
            if raw.backend == sys::ROUTECAP_BACKEND_CUDA { Backend::Cuda } else { Backend::Host };
        let of_layers = |given: &[u32], default: u32| {
            if given.is_empty() { vec![default; raw.layers as usize] } else { given.to_vec() }
        };
        let layer_experts = of_layers(&self.of.experts, raw.experts);
        let layer_k = of_layers(&self.of.k, raw.k);
        // SAFETY: `capturer` was created above, for these values, and is given to nobody else.
        let capturer = unsafe {
            Capturer::new(
                capturer,
                backend,
                raw.role == sys::ROUTECAP_ROLE_DISABLED,
                raw.k,
                layer_k,
                layer_experts,
                WeightsType::of(raw.weights_dtype),
            )
        };
        let forward = Forward::new(capturer.clone());
        Ok((capturer, forward))
    }
}
