// Worker_loop is the worker loop of a GPU engine: asynchronous scheduling, chunked prefill, drafts,
// preemption.
//
// The engine is imitated: a "model" whose routers choose experts by a formula, a "device" that
// samples, and a scheduler that plans step t+1 before it knows what step t sampled. What is
// routecap's here is what an engine writes. The program runs on the host backend, so the stream is
// 0 and device memory is host memory; with CUDA, Begin, the routers and Snapshot are what the
// engine captures into its graph.
//
// Every row that comes out is compared with the formula.
package main

import (
	"context"
	"fmt"
	"log"

	routecap "github.com/routecap/routecap/bindings/go"
)

const (
	layers, k, experts = 6, 4, 64
	maxTokens          = 48
	chunk, drafts      = 24, 2
	slots              = 4
)

// ---- The engine

type sequence struct {
	seed   int // stands for its tokens
	prompt int // tokens
	// of the whole sequence: the last token is never input, so one fewer than its tokens
	rows      int
	preempt   bool // the scheduler will preempt it once
	toFill    int  // tokens that are certain and have to be computed before decoding goes on
	filled    int
	known     int   // position after the last step whose outcome the host knows
	deciding  bool  // the step in flight has drafts whose outcome the host does not know
	nextOnGPU int32 // position after the last step, known to the device only
	request   routecap.Request
	routing   *routecap.Routing // once it is finished
}

// routed is what the router of a layer chooses for the token at a position: k distinct ids.
func routed(seed, position, layer, column int) int16 {
	return int16((seed*7 + position*13 + layer*29 + column*5) % experts)
}

// keeps is how many of the drafts after the token at a position turn out to be right.
func (s *sequence) keeps(position int) int { return (s.seed + position) % (drafts + 1) }

// token is one row of a forward pass.
type token struct {
	owner    *sequence
	position int32 // on the device
}

// forward is one forward pass on the device. Fused kernels write their ids straight into the sink,
// so capture adds no kernel to a layer.
func forward(c *routecap.Capturer, batch []token) {
	check(c.Begin(uint32(len(batch)), 0))
	for layer := range layers {
		ids, stride, err := routecap.SinkSlice[int16](
			c,
			uint32(layer),
		) // the library's sink has 16-bit ids unless configured otherwise
		check(err)
		for row, t := range batch {
			for column := range k {
				ids[row*stride+column] = routed(t.owner.seed, int(t.position), layer, column)
			}
		}
	}
	check(c.Snapshot(0))
}

// ---- The loop

func main() {
	config := routecap.DefaultConfig()
	config.Backend = routecap.BackendHost
	config.Layers, config.K, config.Experts = layers, k, experts
	config.Rows, config.Slots = maxTokens, slots
	capturer, err := routecap.New(config)
	check(err)
	defer capturer.Close()

	sequences := []*sequence{
		{seed: 1, prompt: 61, rows: 69},
		{seed: 2, prompt: 5, rows: 34, preempt: true},
		{seed: 3, prompt: 17, rows: 17},
		{seed: 4, prompt: 100, rows: 119},
		{seed: 5, prompt: 33, rows: 44},
	}
	for _, s := range sequences {
		s.toFill = s.prompt
		s.request, err = capturer.Open(routecap.PolicyKeep)
		check(err)
	}
	running := len(sequences)
	var step routecap.Step
	for iteration := 0; running > 0; iteration++ {
		// Schedule a step without knowing what the previous one sampled.
		var batch []token
		var spans []routecap.Span
		var decided, decoding []*sequence
		for n := range sequences {
			// the order in the batch changes from step to step
			s := sequences[(n+iteration)%len(sequences)]
			if s.routing != nil {
				continue
			}
			if s.deciding {
				decided = append(decided, s)
			}
			if s.filled < s.toFill { // a chunk of the prompt: its positions are known
				rows := min(s.toFill-s.filled, chunk, maxTokens-len(batch))
				if rows == 0 {
					continue
				}
				spans = append(
					spans,
					routecap.Span{
						Request:  s.request,
						Position: uint64(s.filled),
						SinkRow:  uint32(len(batch)),
						Rows:     uint32(rows),
					},
				)
				for range rows {
					batch = append(batch, token{s, int32(s.filled)})
					s.filled++
				}
				s.known = s.filled
				s.nextOnGPU = int32(s.filled)
				// the last token and drafts: where, only the device knows if drafts are being decided
			} else if len(batch)+1+drafts <= maxTokens {
				first, last := s.known, s.known
				if s.deciding {
					first, last = s.known+1, s.known+1+drafts
				}
				row := uint32(len(batch))
				spans = append(spans,
					routecap.Span{Request: s.request, Position: uint64(first), PositionEnd: uint64(last + 1), SinkRow: row, Rows: 1,
						Flags: routecap.SpanDevicePositions},
					routecap.Span{Request: s.request, Position: uint64(first + 1), PositionEnd: uint64(last + 1 + drafts), SinkRow: row + 1,
						Rows: drafts, Flags: routecap.SpanDevicePositions | routecap.SpanSpeculative})
				for i := range int32(1 + drafts) {
					batch = append(batch, token{s, s.nextOnGPU + i}) // on the device
				}
				decoding = append(decoding, s)
			}
		}

		forward(capturer, batch)

		// Throttle as an engine does by itself: steps beyond these would be lost. This
		// imitation computes nothing and runs away otherwise.
		previous := step
		if previous >= slots {
			_, _, err := capturer.Finalize(context.Background(), previous-(slots-1))
			check(err)
		}
		positions := make([]int32, len(batch))
		for i, t := range batch {
			positions[i] = t.position
		}
		options := routecap.IssueOptions{
			Tag:       42, /* the weights' version */
			Positions: routecap.ArrayOf(positions),
		}
		var result routecap.Result
		step, result, err = capturer.Issue(spans, options, nil, 0)
		check(err) // of a lost step too (ErrLost), which an engine would count, and go on
		complete(result)

		// Meanwhile the outcome of the previous step's drafts has arrived.
		accepts := make([]routecap.AcceptItem, len(decided))
		for i, s := range decided {
			kept := s.keeps(s.known)
			accepts[i] = routecap.AcceptItem{
				Request: s.request,
				Step:    previous,
				Count:   uint64(kept),
			}
			s.known += 1 + kept
			s.deciding = false
		}
		result, err = capturer.AcceptBatch(accepts)
		check(err)
		complete(result)

		for _, s := range decoding { // the device samples, and goes on from there
			s.nextOnGPU += int32(1 + s.keeps(int(s.nextOnGPU)))
			s.deciding = true
		}
		for _, s := range sequences {
			switch {
			case s.routing != nil:
			case s.known >= s.rows:
				// Done. The step in flight ran ahead for nothing: what it adds beyond the
				// sequence's rows is
				// cut, what was drafted is dropped.
				s.routing, err = capturer.Finish(s.request, uint64(s.rows))
				check(err)
				running--
			case s.preempt && s.known >= s.prompt+6:
				// Preempted: its cache is gone and all its tokens are computed again, but they were
				// sampled
				// under the rows captured first, which stay. (To drop them:
				// capturer.Truncate(s.request, 0).)
				// The drafts in flight will not be wanted.
				s.preempt = false
				s.toFill, s.filled = s.known, 0
				if s.deciding {
					check(capturer.Accept(s.request, step, 0))
				}
				s.deciding = false
			}
		}
	}

	// Elsewhere, on any goroutine, at any time later: the routings.
	wrong := 0
	for i, s := range sequences {
		result, err := s.routing.Wait(context.Background())
		check(err)
		complete(result)
		ids := make([]int16, s.rows*layers*k)
		_, _, err = routecap.CopyTo(
			s.routing,
			routecap.DefaultCopyOptions(),
			ids,
			nil,
		) // missing cells would be -1
		check(err)
		for at, id := range ids {
			if id != routed(s.seed, at/(layers*k), at/k%layers, at%k) {
				wrong++
			}
		}
		prompt, generated, err := s.routing.Split(uint64(s.prompt), routecap.RowsAll)
		check(err)
		promptView, err := prompt.View()
		check(err)
		generatedView, err := generated.View()
		check(err)
		fmt.Printf(
			"sequence %d: %d rows of the prompt and %d generated, %d layers, %d experts per token: %v\n",
			i,
			promptView.Rows,
			generatedView.Rows,
			promptView.Layers,
			promptView.K,
			result.Status,
		)
		for _, r := range []*routecap.Routing{prompt, generated, s.routing} {
			r.Close()
		}
	}
	stats, err := capturer.Stats()
	check(err)
	fmt.Printf(
		"%d steps, %d lost; %d rows delivered, of which %d again after a preemption; %d drafts rejected; %d differences\n",
		stats.StepsIssued,
		stats.StepsLost,
		stats.RowsDelivered,
		stats.RowsOverlapped,
		stats.RowsRejected,
		wrong,
	)
	if wrong != 0 {
		log.Fatal("the rows are not those of the routers")
	}
}

// complete stops where something was lost or refused, which may not happen here.
func complete(r routecap.Result) {
	if !r.Complete() {
		log.Fatal(r.Status, ": ", r.Text)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
