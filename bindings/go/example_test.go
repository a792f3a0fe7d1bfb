//go:build cgo

package routecap_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"log"

	routecap "github.com/routecap/routecap/bindings/go"
)

// capture makes a capturer on the host backend and captures one forward pass of three tokens
// through two MoE layers, 2 of 8 experts each. In row 1, layer 1 an id is no expert: that cell is
// missing.
func capture() (*routecap.Capturer, routecap.Request) {
	config := routecap.DefaultConfig()
	config.Backend = routecap.BackendHost
	config.Layers, config.K, config.Experts = 2, 2, 8
	config.Rows = 16
	capturer, err := routecap.New(config)
	check(err)
	request, err := capturer.Open(routecap.PolicyKeep)
	check(err)

	routers := [][]int32{{3, 1, 0, 7, 5, 2}, {6, 4, 2, 8, 7, 0}} // [layer][rows, k]
	check(capturer.Begin(3, 0))
	for layer, ids := range routers {
		check(capturer.Record(uint32(layer), routecap.SourceOf(ids, 3), 0))
	}
	check(capturer.Snapshot(0))
	spans := []routecap.Span{{Request: request, Position: 0, SinkRow: 0, Rows: 3}}
	step, _, err := capturer.Issue(spans, routecap.IssueOptions{Tag: 9}, nil, 0)
	check(err)
	_, _, err = capturer.Finalize(context.Background(), step)
	check(err)
	return capturer, request
}

// finish ends the request and waits for its rows.
func finish(capturer *routecap.Capturer, request routecap.Request, rows uint64) *routecap.Routing {
	routing, err := capturer.Finish(request, rows)
	check(err)
	_, err = routing.Wait(context.Background())
	check(err)
	return routing
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func Example() {
	capturer, request := capture()
	defer capturer.Close()

	routing, err := capturer.Finish(
		request,
		3,
	) // a sequence of four tokens: the last one is never input
	check(err)
	defer routing.Close()
	result, err := routing.Wait(context.Background())
	check(err)
	fmt.Println(result.Status)

	view, err := routing.View()
	check(err)
	for position, row := range view.All() {
		for layer := range int(view.Layers) {
			fmt.Print("row ", position, ", layer ", layer, ": ", row.AppendIDs(nil, layer), "\n")
		}
	}
	// Output:
	// ROUTECAP_INCOMPLETE
	// row 0, layer 0: [3 1]
	// row 0, layer 1: [6 4]
	// row 1, layer 0: [0 7]
	// row 1, layer 1: []
	// row 2, layer 0: [5 2]
	// row 2, layer 1: [7 0]
}

func ExampleCapturer_Coverage() {
	capturer, request := capture()
	defer capturer.Close()

	missing := make([]routecap.Missing, 4)
	coverage, result, err := capturer.Coverage(request, 0, routecap.RowsAll, missing)
	check(err)
	fmt.Println(coverage.RowsComplete, "of", coverage.Rows, "rows are complete;", result.Status)
	for _, m := range missing[:coverage.Blocks] {
		fmt.Println(
			"row",
			m.First,
			"layer",
			m.FirstLayer,
			"out of range:",
			m.Reason == routecap.MissingOutOfRange,
		)
	}
	// Output:
	// 2 of 3 rows are complete; ROUTECAP_INCOMPLETE
	// row 1 layer 1 out of range: true
}

func ExampleExtractInto() {
	capturer, request := capture()
	defer capturer.Close()

	ids := make([]int32, 3*2*2) // [rows, layers, k]
	mask := make([]uint8, 3*2)  // [rows, layers]
	_, result, err := routecap.ExtractInto(
		capturer,
		request,
		0,
		routecap.RowsAll,
		routecap.DefaultCopyOptions(),
		ids,
		mask,
	)
	check(err)
	fmt.Println(ids, mask, result.Complete())
	// Output:
	// [3 1 6 4 0 7 -1 -1 5 2 7 0] [1 1 1 0 1 1] false
}

func ExampleError() {
	capturer, request := capture()
	defer capturer.Close()

	_, _, err := capturer.Extract(request, 0, 4, routecap.ExtractShare, 0)
	fmt.Println(errors.Is(err, routecap.ErrOutOfRange))
	_, _, err = capturer.Extract(request, 0, 3, routecap.ExtractShare, routecap.ReadStrict)
	var failure *routecap.Error
	fmt.Println(errors.As(err, &failure) && failure.Status == routecap.ErrIncomplete)
	// Output:
	// true
	// true
}

// What an engine does about a step that is lost: it goes on, and knows.
func ExampleLostError() {
	config := routecap.DefaultConfig()
	config.Backend = routecap.BackendHost
	config.Layers, config.K, config.Experts, config.Rows = 1, 2, 8, 16
	// Nobody files the first step before the second.
	config.Slots, config.Flags = 1, routecap.ConfigManualProgress|routecap.ConfigMayLose
	capturer, err := routecap.New(config)
	check(err)
	defer capturer.Close()
	request, err := capturer.Open(routecap.PolicyKeep)
	check(err)

	ids := []int32{3, 1} // what the router chose for each token, [rows, k]
	for position := range uint64(2) {
		check(capturer.Begin(1, 0))
		check(capturer.Record(0, routecap.SourceOf(ids, 1), 0))
		check(capturer.Snapshot(0))
		spans := []routecap.Span{{Request: request, Position: position, Rows: 1}}
		step, _, err := capturer.Issue(spans, routecap.IssueOptions{}, nil, 0)
		switch {
		case errors.Is(err, routecap.ErrLost):
			fmt.Println("step", step, "is lost: its rows will be missing")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("step", step, "is on its way")
		}
	}
	// Output:
	// step 1 is on its way
	// step 2 is lost: its rows will be missing
}

func ExampleRouting_MarshalBinary() {
	capturer, request := capture()
	defer capturer.Close()
	routing := finish(capturer, request, 3)
	defer routing.Close()

	var network bytes.Buffer // gob, and whatever else knows encoding.BinaryMarshaler
	check(gob.NewEncoder(&network).Encode(routing))
	var received routecap.Routing
	check(gob.NewDecoder(&network).Decode(&received))
	defer received.Close()

	view, err := received.View()
	check(err)
	fmt.Println(view.Rows, "rows,", view.Layers, "layers, tag", view.Segments[0].Tag)
	// Output:
	// 3 rows, 2 layers, tag 9
}

// Cells that are missing have no ids.
func ExampleView_All() {
	capturer, request := capture()
	defer capturer.Close()
	routing := finish(capturer, request, 3)
	defer routing.Close()

	view, err := routing.View()
	check(err)
	for position, row := range view.All() {
		for layer := range int(view.Layers) {
			fmt.Print(position, " ", view.LayerMap[layer], ": ", row.AppendIDs(nil, layer), "\n")
		}
	}
	// Output:
	// 0 0: [3 1]
	// 0 1: [6 4]
	// 1 0: [0 7]
	// 1 1: []
	// 2 0: [5 2]
	// 2 1: [7 0]
}

// Rows that another process left in memory, as the library has them itself: they stay where they
// are.
func ExampleImportInPlace() {
	rows := []byte{ // ids of 3 layers, K = 2; validity; zeros up to the next row
		3, 1, 7, 0, 2, 5, 0b111, 0,
		4, 6, 0, 7, 1, 2, 0b101, 0, // layer 1 is missing
	}
	routing, _, err := routecap.ImportInPlace(routecap.View{
		DType:     routecap.DTypeU8,
		Layers:    3,
		K:         2,
		Experts:   8,
		Rows:      2,
		RowStride: 8,
		Segments:  []routecap.Segment{{Rows: 2, IDs8: rows, Validity: rows[6:]}},
	}, 0, func() { fmt.Println("no longer used") })
	check(err)
	view, err := routing.View() // a copy
	check(err)
	for position, row := range view.All() {
		fmt.Println(position, row.AppendIDs(nil, 0), row.AppendIDs(nil, 1), row.AppendIDs(nil, 2))
	}
	check(routing.Close())
	// Output:
	// 0 [3 1] [7 0] [2 5]
	// 1 [4 6] [] [1 2]
	// no longer used
}

func ExampleSplice() {
	capturer, request := capture()
	defer capturer.Close()
	routing := finish(capturer, request, 3)
	defer routing.Close()
	prompt, generated, err := routing.Split(2, routecap.RowsAll)
	check(err)
	defer prompt.Close()
	defer generated.Close()
	head, err := prompt.MarshalBinary() // from the machine that filled the cache
	check(err)
	tail, err := generated.MarshalBinary() // from the one that decoded
	check(err)

	spliced, err := routecap.Splice(head, tail, 2)
	check(err)
	whole, _, err := routecap.ReadRouting(
		spliced.Reader(bytes.NewReader(head), bytes.NewReader(tail)),
		1<<20,
	)
	check(err)
	defer whole.Close()
	view, err := whole.View()
	check(err)
	fmt.Println(view.First, view.Rows)
	// Output:
	// 0 3
}

func ExampleSequence() {
	capturer, request := capture()
	defer capturer.Close()
	call := finish(capturer, request, 3) // of four tokens
	defer call.Close()

	sequence, err := routecap.NewSequence(routecap.SequenceConfig{Layers: 2, K: 2, Experts: 8})
	check(err)
	defer sequence.Close()
	prompt, _, err := call.Split(1, 0)
	check(err)
	defer prompt.Close()
	_, _, err = sequence.Append([]int32{11, 12}, 0, prompt, routecap.AppendOptions{})
	check(err)
	report, _, err := sequence.Append(
		[]int32{11, 12, 13, 14},
		0,
		call,
		routecap.AppendOptions{Tag: 9},
	)
	check(err)
	fmt.Println(report.TokensCommon, "tokens were known,", report.RowsTaken, "rows are new")
	routing, result, err := sequence.Routing()
	check(err)
	defer routing.Close()
	view, err := routing.View()
	check(err)
	fmt.Println(view.Rows, "rows,", result.Status) // one router chose an expert that there is not
	// Output:
	// 2 tokens were known, 2 rows are new
	// 3 rows, ROUTECAP_INCOMPLETE
}
