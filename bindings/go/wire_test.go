//go:build cgo

package routecap

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// golden reads a message that a project's own function wrote.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "tests", "wire", "golden", name))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no golden messages: this is a copy of the module alone")
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// goldenIDs are the ids that tests/wire/golden/README.md says.
func goldenIDs(rows, firstColumn, columns, k, experts int) (ids []int64) {
	for r := range rows {
		for c := firstColumn; c < columns; c++ {
			for i := range k {
				ids = append(ids, int64((5*r+3*c+i)%experts))
			}
		}
	}
	return ids
}

func TestWireMessagesOfTheProjectsArrive(t *testing.T) {
	for _, c := range []struct {
		file, writer              string
		rows, columns, k, experts int
		dense                     bool
	}{
		{"vllm-8.npy.b64", "vllm", 6, 4, 8, 128, true},
		{"vllm-16.npy.b64", "vllm", 6, 4, 8, 512, true},
		{"sglang-0.5.23.b64", "sglang", 9, 3, 8, 256, false},
		{"nemo-rl-16.nrlre1", "nemo-rl", 8, 3, 8, 512, false},
		{"megatron-core-0.19.2.lists.json", "megatron", 5, 4, 6, 64, false},
		{"prime-rl.routes.json", "prime-rl", 6, 3, 8, 512, false},
	} {
		t.Run(c.file, func(t *testing.T) {
			data := golden(t, c.file)
			format, err := FindWire(c.writer)
			if err != nil {
				t.Fatal(err)
			}
			hint := WireHint{
				Columns: uint32(c.columns),
				K:       uint32(c.k),
				Experts: uint32(c.experts),
				Rows:    uint64(c.rows),
			}
			ids := goldenIDs(c.rows, 0, c.columns, c.k, c.experts)
			if c.dense {
				hint.LayerMap = []int32{1, 2, 3}
				ids = goldenIDs(c.rows, 1, c.columns, c.k, c.experts)
			}
			routing, report, r, err := DecodeWire(data, format, hint)
			if err != nil || !r.Complete() || report.Rows != uint64(c.rows) {
				t.Fatal(report, r, err)
			}
			defer routing.Close()
			got := make([]int64, len(ids))
			if _, _, err := CopyTo(routing, DefaultCopyOptions(), got, nil); err != nil ||
				!slices.Equal(got, ids) {
				t.Fatal(got, err)
			}

			decoder, err := NewWireDecoder(format, hint)
			if err != nil {
				t.Fatal(err)
			}
			defer decoder.Close()
			if _, err := io.CopyBuffer(struct{ io.Writer }{decoder}, struct{ io.Reader }{bytes.NewReader(data)}, make([]byte, 13)); err != nil {
				t.Fatal(err)
			}
			again, same, _, err := decoder.Finish()
			if err != nil || same != report {
				t.Fatal(same, err)
			}
			defer again.Close()
			first, _ := routing.MarshalBinary()
			if second, _ := again.MarshalBinary(); !bytes.Equal(first, second) {
				t.Fatal("in pieces the routing is another")
			}
		})
	}
}

func TestWireLosesNothingWithoutLeave(t *testing.T) {
	routing, report, r, err := DecodeWire(
		[]byte("[[[1,2]],[[-1,-1]]]"),
		WireLists,
		WireHint{Experts: 8, First: 4},
	)
	if err != nil || r.Status != Incomplete || report.CellsNegative != 1 {
		t.Fatal(report, r, err)
	}
	defer routing.Close()
	if _, _, err := routing.EncodeWire(WireOptions{Format: WireNpy}); !errors.Is(err, ErrLossy) ||
		!strings.Contains(err.Error(), "first, validity, reasons") {
		t.Fatal(err)
	}
	facts := WireFactFirst | WireFactReasons
	message, report, err := routing.EncodeWire(
		WireOptions{Format: WireNrlre1, DType: DTypeI16, Allow: facts},
	)
	if err != nil || string(message) != "nrlre1:int16:2x1x2:AQACAP////8=" || report.Lost != facts {
		t.Fatal(string(message), report, err)
	}
	if d, err := WireNpyBase64.Describe(); err != nil ||
		!slices.Equal(d.Aliases, []string{"vllm"}) ||
		d.Ending != ".npy.b64" {
		t.Fatal(d, err)
	}
	if _, err := FindWire("no such"); !errors.Is(err, ErrArgument) {
		t.Fatal(err)
	}
}

func TestWireDecoderIsClosedOnce(t *testing.T) {
	decoder, err := NewWireDecoder(WireAny, WireHint{Experts: 8})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decoder.Write([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := decoder.Finish(); !errors.Is(err, ErrFormat) {
		t.Fatal(err)
	}
	decoder.Close()
	decoder.Close()
	if _, err := decoder.Write([]byte("[")); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}
