//go:build cgo

package routecap

// Request names a request of one capturer; other capturers do not know it. 0 is none. A request
// that was closed or finished is an error from then on, never another one.
type Request uint64

// Step is the ticket of a step of one capturer: 1, 2, 3, ... in order of issue. 0 is none.
type Step uint64

// Stream is what CUDA calls cudaStream_t and CUstream, as a number: 0 is the legacy default stream,
// 2 the per-thread one (for which the goroutine has to be locked to its thread). On the host
// backend it is 0.
type Stream uintptr

// DevicePointer is the address of memory that is not Go's: of the device, or on the host backend of
// memory from C. Such memory has to stay valid until the work of the stream that reads it has run;
// on the host backend, until the call returns. 0 is none.
type DevicePointer uintptr

// Backend says where the sink is: BackendHost or BackendCUDA.
type Backend int32

// Role says what a rank does: RoleOwner, RoleMirror or RoleDisabled.
type Role int32

// IDSpace says what ids number: IDSpaceLogical or IDSpacePhysical.
type IDSpace int32

// Provenance says how the ids of a layer were had: ProvenanceCaptured or ProvenanceRecomputed.
type Provenance int32

// DType is an element type.
type DType int32

// ConfigFlags of a Config: ConfigCompare and its like.
type ConfigFlags uint32

// SourceFlags of a Source: SourceOverlap.
type SourceFlags uint32

// Score is how a router scores an expert, from its logit.
type Score int32

// GroupScore is how a router scores a group of experts, from their keys.
type GroupScore int32

// RouterFlags of a Router.
type RouterFlags uint32

// Method is a way of routing in use, for NewRouter.
type Method int32

// ProbeFlags say what is odd about the ids of a layer.
type ProbeFlags uint32

// ReceivedFlags of a Received.
type ReceivedFlags uint32

// SpanFlags of a Span: SpanSpeculative, SpanDevicePositions, SpanShared where several spans of a
// step have its sink rows, and SpanPrefill, SpanDecode or SpanUncounted for the load.
type SpanFlags uint32

// Snapshot says who takes the snapshot: the forward pass, SnapshotTaken; the issue, SnapshotMake;
// or nobody, as the rows arrive later, SnapshotLater.
type Snapshot int32

// Phase is that of a step's rows, by which their load is counted: PhasePrefill or PhaseDecode.
type Phase int32

// Policy says which of two rows for one position is kept: PolicyKeep, the first, or PolicyReplace,
// the last.
type Policy int32

// Reason says why a cell is missing.
type Reason int32

// ExtractMode says what reading does to the rows of a request: ExtractShare, ExtractTake or
// ExtractCopy.
type ExtractMode int32

// ReadFlags of reading calls: 0, or ReadStrict, with or without ReadAllowRecomputed.
type ReadFlags uint32

// Order says in which order copies are laid out: OrderRowMajor or OrderLayerMajor.
type Order int32

// ImportFlags of Deserialize and Import: 0 or ImportTrusted.
type ImportFlags uint32

// PieceSource says where bytes of a spliced routing come from.
type PieceSource int32

// WireFormat is a format of the wire: what servers send and trainers read.
type WireFormat int32

// WireFacts is what a routing says, and a format of the wire may not.
type WireFacts uint32

// WireColumns says what the columns of a message are.
type WireColumns int32

// WireHintFlags of a WireHint: 0 or WireHintStrict.
type WireHintFlags uint32

// StoreFlags of a StoreConfig: 0 or StoreSlotKeys.
type StoreFlags uint32

// AppendPolicy says which cell stays where a sequence and a call both have one: AppendKeep, the
// sequence's; AppendNewest, the call's; or AppendEqual, both must be equal.
type AppendPolicy int32

// SequenceFlags of Sequence.Serialize: 0 or SequenceWithTokens.
type SequenceFlags uint32

// PlanLayout says how a micro-batch lies before it is divided.
type PlanLayout int32

// PlanContext says how context parallelism divides a micro-batch.
type PlanContext int32

// PlanFlags of a PlanConfig: PlanSequenceParallel, PlanSequenceFirst.
type PlanFlags uint32

// PlanFill says what padding is filled with.
type PlanFill int32

// PlanLost says what lost cells are filled with.
type PlanLost int32

// PlanClass says what a cell of a plan's result is.
type PlanClass int32
