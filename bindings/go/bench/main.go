// Bench measures calls of this package on the host backend, for comparison with the same calls from
// C: one JSON object per line, the median in nanoseconds.
package main

import (
	"context"
	"fmt"
	"log"
	"slices"
	"time"

	routecap "github.com/routecap/routecap/bindings/go"
)

const (
	layers, k, experts, rows = 58, 8, 256, 1024
	requests                 = 256
	warmUp, repetitions      = 50, 300
	many                     = 100
)

func main() {
	config := routecap.DefaultConfig()
	config.Backend = routecap.BackendHost
	config.Layers, config.K, config.Experts, config.Rows = layers, k, experts, rows
	c, err := routecap.New(config)
	check(err)
	defer c.Close()
	b := bench{c: c}
	for i := range b.ids {
		b.ids[i] = int32((i/k*7 + i%k*31) % experts)
	}

	landed := b.land(b.open(), 1)
	measure("poll", many, nothing, func() {
		_, err := c.Poll(landed)
		check(err)
	}, nothing)
	measure("open_close", many, nothing, func() {
		r, err := c.Open(routecap.PolicyKeep)
		check(err)
		check(c.CloseRequest(r))
	}, nothing)
	handles := make([]routecap.Request, requests)
	measure("open_close_256", 1, nothing, func() {
		check(c.OpenBatch(handles, routecap.PolicyKeep))
		_, err := c.CloseRequests(handles, nil)
		check(err)
	}, nothing)
	b.steps()
	b.reading()
}

type bench struct {
	c   *routecap.Capturer
	ids [rows * k]int32
}

// measure prints the median time of f, which is timed `count` times together if it is short; before
// and after are not timed.
func measure(name string, count int, before, f, after func()) {
	times := make([]float64, 0, repetitions)
	for i := range warmUp + repetitions {
		before()
		start := time.Now()
		for range count {
			f()
		}
		elapsed := time.Since(start)
		after()
		if i >= warmUp {
			times = append(times, float64(elapsed.Nanoseconds())/float64(count))
		}
	}
	slices.Sort(times)
	fmt.Printf("{\"name\": %q, \"ns\": %.1f}\n", name, times[len(times)/2])
}

func nothing() {}

// steps measures what an engine's thread calls once per forward pass, for spans of one row each.
func (b *bench) steps() {
	handles := make([]routecap.Request, requests)
	spans := make([]routecap.Span, requests)
	accepts := make([]routecap.AcceptItem, requests)
	finishes := make([]routecap.FinishItem, requests)
	var step routecap.Step
	batch := func(position uint64, flags routecap.SpanFlags) {
		for i, h := range handles {
			spans[i] = routecap.Span{
				Request:  h,
				Position: position,
				SinkRow:  uint32(i),
				Rows:     1,
				Flags:    flags,
			}
		}
		b.forward(requests)
	}
	issue := func() {
		var err error
		step, _, err = b.c.Issue(spans, routecap.IssueOptions{}, nil, 0)
		check(err)
	}
	check(b.c.OpenBatch(handles, routecap.PolicyKeep))
	position := uint64(0)
	measure("issue_256", 1, func() {
		batch(position, 0)
		position++
	}, issue, func() { b.finalize(step) })
	_, err := b.c.CloseRequests(handles, nil)
	check(err)

	var routings []*routecap.Routing
	measure("issue_accept_finish_256", 1, func() {
		check(b.c.OpenBatch(handles, routecap.PolicyKeep))
		batch(0, routecap.SpanSpeculative)
	}, func() {
		issue()
		for i, h := range handles {
			accepts[i] = routecap.AcceptItem{Request: h, Step: step, Count: 1}
			finishes[i] = routecap.FinishItem{Request: h, Rows: 1}
		}
		result, err := b.c.AcceptBatch(accepts)
		check(err)
		complete(result)
		routings, result, err = b.c.FinishBatch(finishes)
		check(err)
		complete(result)
	}, func() {
		b.finalize(step)
		for _, r := range routings {
			r.Close()
		}
	})
}

// reading measures what is done with the rows of a request of 1024 rows.
func (b *bench) reading() {
	request := b.open()
	b.land(request, rows)
	extract := func() *routecap.Routing {
		r, result, err := b.c.Extract(request, 0, routecap.RowsAll, routecap.ExtractShare, 0)
		check(err)
		complete(result)
		return r
	}
	measure("extract_share", 1, nothing, func() { extract().Close() }, nothing)

	routing := extract()
	defer routing.Close()
	sum := 0
	measure("view", many, nothing, func() {
		view, err := routing.View()
		check(err)
		sum += int(view.Segments[0].IDs8[0])
	}, nothing)
	dst := make([]int32, rows*layers*k)
	measure("copy_to", 1, nothing, func() {
		_, result, err := routecap.CopyTo(routing, routecap.DefaultCopyOptions(), dst, nil)
		check(err)
		complete(result)
	}, nothing)
	measure("serialize", 1, nothing, func() {
		data, err := routing.MarshalBinary()
		check(err)
		sum += len(data)
	}, nothing)
	if sum == 0 {
		log.Fatal("nothing was read")
	}
}

func (b *bench) open() routecap.Request {
	request, err := b.c.Open(routecap.PolicyKeep)
	check(err)
	return request
}

// forward is a forward pass of n rows.
func (b *bench) forward(n uint32) {
	check(b.c.Begin(n, 0))
	source := routecap.SourceOf(b.ids[:n*k], n)
	for layer := range uint32(layers) {
		check(b.c.Record(layer, source, 0))
	}
	check(b.c.Snapshot(0))
}

// land captures the first n rows of a request, and waits for them.
func (b *bench) land(request routecap.Request, n uint32) routecap.Step {
	b.forward(n)
	step, _, err := b.c.Issue(
		[]routecap.Span{{Request: request, Rows: n}},
		routecap.IssueOptions{},
		nil,
		0,
	)
	check(err)
	b.finalize(step)
	return step
}

func (b *bench) finalize(step routecap.Step) {
	_, result, err := b.c.Finalize(context.Background(), step)
	check(err)
	complete(result)
}

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
