//go:build cgo

package routecap

import (
	"fmt"
	"unsafe"
)

// Load says how often each expert of each layer was chosen (routecap_load).
type Load struct {
	Layers, Experts int // of Counts: the capturer's layers, and the most experts of any layer
	// [LoadPhases, Layers, Experts]; beyond the experts of a layer they are 0
	Counts      []uint64
	Steps       uint64 // that landed with rows and are counted
	FirstStep   Step   // ticket of the first of them; 0: none
	LastStep    Step   // ticket of the last of them
	RowsPrefill uint64 // that got their first valid cell
	RowsDecode  uint64 // likewise
}

// Of returns the counts of one layer in one phase, an element for each expert: a part of Counts. It
// panics if there is no such phase or layer.
func (l *Load) Of(phase Phase, layer int) []uint64 {
	if phase < 0 || phase >= LoadPhases {
		panic(fmt.Sprintf("routecap: phase %d of %d", phase, LoadPhases))
	}
	checkLayer(layer, l.Layers)
	at := (int(phase)*l.Layers + layer) * l.Experts
	return l.Counts[at : at+l.Experts : at+l.Experts]
}

// Since returns what was counted after an earlier reading of the same capturer and tag: a window.
// Its FirstStep is one past the earlier LastStep. It panics if that has another shape or is later.
func (l *Load) Since(earlier *Load) Load {
	if l.Layers != earlier.Layers || l.Experts != earlier.Experts || l.Steps < earlier.Steps {
		panic("routecap: not an earlier reading of this load")
	}
	window := *l
	window.Counts = make([]uint64, len(l.Counts))
	for i := range l.Counts {
		window.Counts[i] = l.Counts[i] - earlier.Counts[i]
	}
	window.Steps -= earlier.Steps
	window.RowsPrefill -= earlier.RowsPrefill
	window.RowsDecode -= earlier.RowsDecode
	if earlier.Steps > 0 {
		window.FirstStep = earlier.LastStep + 1
	}
	if window.Steps == 0 {
		window.FirstStep, window.LastStep = 0, 0
	}
	return window
}

// Load reads how often each expert was chosen since the capturer was created
// (routecap_capturer_load). The capturer needs ConfigLoad. The reading has all steps that had
// landed before, each whole; it may wait for the one that is being filed or counted.
//
// Errors: ErrArgument, the capturer was created without ConfigLoad.
func (c *Capturer) Load() (Load, error) {
	const op = "routecap_capturer_load"
	var said cLoad
	var counts []uint64
	for {
		said = cLoad{structSize: uint32(unsafe.Sizeof(cLoad{}))}
		if _, err := c.call(op, func(p unsafe.Pointer) Result {
			return routecap_capturer_load(p, &said, unsafe.SliceData(counts), uintptr(len(counts)))
		}); err != nil {
			return Load{}, err
		}
		if n := LoadPhases * int(said.layers) * int(said.experts); len(counts) != n {
			counts = make([]uint64, n)
			continue
		}
		return Load{
			int(said.layers),
			int(said.experts),
			counts,
			said.steps,
			Step(said.firstStep),
			Step(said.lastStep),
			said.rowsPrefill,
			said.rowsDecode,
		}, nil
	}
}
