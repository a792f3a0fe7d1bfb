// Ollama's engine as a library, and the routing of a mixture-of-experts model in it, through
// routecap's Go package.
//
//	ollama [-prune] [-save FOLDER] MODEL.gguf PROMPT...
//
// Tokens are bytes, as in the models of this project. All prompts are prefilled together, in
// batches, and then continued together, one token each. What is routecap's here is in tap.go; the
// rest is an engine's loop, that of Ollama's runner in small.
//
// With -prune only the last token of each prompt wants logits, as in serving: the engine then
// computes only those rows of the last layer, and the others are reported as missing. -save writes
// each request's routing to FOLDER/request-0.routecap and so on, for `routecap show FOLDER`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ollama/ollama/ml"
	"github.com/ollama/ollama/model"
	"github.com/ollama/ollama/model/input"
	_ "github.com/ollama/ollama/model/models/gptoss"
	_ "github.com/ollama/ollama/model/models/qwen3"

	routecap "github.com/routecap/routecap/bindings/go"
)

const contextLength, maxBatch, generate = 512, 64, 8

type sequence struct {
	prompt, generated []byte
	rows              int // tokens that were input
}

func main() {
	prune := flag.Bool("prune", false, "only the last token of each prompt wants logits")
	save := flag.String("save", "", "a `folder` for the routings")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn)
	if err := run(flag.Args(), *prune, *save); err != nil {
		log.SetFlags(0)
		log.Fatal(err)
	}
}

func run(arguments []string, prune bool, save string) error {
	if len(arguments) < 2 {
		return errors.New("a model and prompts are needed")
	}
	var sequences []*sequence
	for _, prompt := range arguments[1:] {
		if prompt == "" || len(prompt)+generate > contextLength {
			return errors.New("a prompt is empty or too long")
		}
		sequences = append(sequences, &sequence{prompt: []byte(prompt)})
	}
	m, err := model.New(arguments[0], ml.BackendParams{AllocMemory: true, NumThreads: 1})
	if err != nil {
		return err
	}
	defer m.Backend().Close()
	if err := m.Backend().Load(context.Background(), func(float32) {}); err != nil {
		return err
	}
	// Comparable with other engines; 16-bit numbers choose other experts in some cells.
	m.Config().Cache.Init(m.Backend(), ml.DTypeF32, len(sequences), contextLength, maxBatch)

	tap, err := Install(m, maxBatch, routecap.DefaultConfig())
	if err != nil {
		return err
	}
	defer tap.Close()
	for i := range sequences {
		if err := tap.Open(i); err != nil {
			return err
		}
	}

	for len(sequences[len(sequences)-1].generated) < generate {
		// A batch: prompts until they end, and then the last token of each sequence.
		var tokens, outputs []int32
		var batch input.Batch
		var sampled []*sequence // those whose next token this pass gives, and where
		var sampledAt []int
		prefilling := false
		for _, s := range sequences {
			prefilling = prefilling || s.rows < len(s.prompt)
		}
		for i, s := range sequences {
			ready := s.prompt[min(s.rows, len(s.prompt)):]
			if !prefilling {
				ready = s.generated[len(s.generated)-1:]
			}
			for _, token := range ready[:min(len(ready), maxBatch-len(tokens))] {
				last := s.rows+1 >= len(s.prompt)
				if last {
					sampled, sampledAt = append(sampled, s), append(sampledAt, len(outputs))
				}
				if last || !prune {
					outputs = append(outputs, int32(len(tokens)))
				}
				batch.Positions = append(batch.Positions, int32(s.rows))
				batch.Sequences = append(batch.Sequences, i)
				tokens = append(tokens, int32(token))
				s.rows++
			}
		}
		next, err := forward(m, tap, tokens, outputs, batch)
		if err != nil {
			return err
		}
		for i, s := range sampled {
			s.generated = append(s.generated, next[sampledAt[i]])
		}
	}

	for i, s := range sequences {
		routing, err := tap.Finish(i) // the last token generated was never input
		if err != nil {
			return err
		}
		defer routing.Close()
		if err := report(fmt.Sprintf("request %d, %q -> %q", i, s.prompt, s.generated), routing); err != nil {
			return err
		}
		if save != "" {
			if err := write(save, i, s, routing); err != nil {
				return err
			}
		}
	}
	return nil
}

// forward runs one batch and returns the likeliest token behind each output.
func forward(m model.Model, tap *Tap, tokens, outputs []int32, batch input.Batch) ([]byte, error) {
	ctx := m.Backend().NewContext()
	defer ctx.Close()
	batch.Inputs = ctx.Input().FromInts(tokens, len(tokens))
	batch.Outputs = ctx.Input().Empty(ml.DTypeI32, 0)
	if len(outputs) > 0 {
		batch.Outputs = ctx.Input().FromInts(outputs, len(outputs))
	}
	logits, err := model.Forward(ctx, m, batch)
	if err != nil {
		return nil, err
	}
	graph := tap.Built()
	ctx.Compute(graph.Outputs(logits)...)
	if err := tap.Issue(graph, batch, outputs); err != nil {
		return nil, err
	}
	all, best := logits.Floats(), make([]byte, len(outputs))
	for i := range best {
		row := all[i*logits.Dim(0):][:logits.Dim(0)]
		for token := range row {
			if row[token] > row[best[i]] {
				best[i] = byte(token)
			}
		}
	}
	return best, nil
}

// report waits for a request's routing and prints it: how much is there, what is missing, and the
// busiest expert of each layer.
func report(name string, routing *routecap.Routing) error {
	result, err := routing.Wait(context.Background())
	if err != nil {
		return err
	}
	view, err := routing.View()
	if err != nil {
		return err
	}
	fmt.Printf(
		"%s: %d rows x %d layers x %d experts: %v\n",
		name,
		view.Rows,
		view.Layers,
		view.K,
		result.Status,
	)
	coverage, _, err := routing.Coverage(nil)
	if err != nil {
		return err
	}
	missing := make([]routecap.Missing, coverage.Blocks)
	if _, _, err = routing.Coverage(missing); err != nil {
		return err
	}
	for _, block := range missing {
		layers := view.LayerMap[block.FirstLayer:][:block.Layers]
		fmt.Printf(
			"  missing: rows %d..%d of decoder layers %v\n",
			block.First,
			block.First+block.Rows,
			layers,
		)
	}
	for layer := range int(view.Layers) {
		load, rows, busiest := make([]int, view.Experts), 0, 0
		for _, row := range view.All() {
			if row.Valid(layer) {
				rows++
			}
			for _, expert := range row.AppendIDs(nil, layer) {
				if load[expert]++; load[expert] > load[busiest] {
					busiest = expert
				}
			}
		}
		fmt.Printf(
			"  layer %d: busiest expert %d, in %d of %d rows\n",
			view.LayerMap[layer],
			busiest,
			load[busiest],
			rows,
		)
	}
	return nil
}

// write writes a request's routing in the serialised form, and beside it the texts of its tokens,
// which are bytes: what the command `routecap show FOLDER` shows.
func write(folder string, number int, s *sequence, routing *routecap.Routing) error {
	data, err := routing.MarshalBinary()
	if err != nil {
		return err
	}
	var tokens []string
	for _, token := range slices.Concat(s.prompt, s.generated) {
		code := int(token)
		if code >= 0x80 {
			code |= 0xdc00
		}
		tokens = append(tokens, fmt.Sprintf(`"\u%04x"`, code))
	}
	info := fmt.Sprintf(
		`{"tokens": [%s], "prompt_tokens": %d}`,
		strings.Join(tokens, ", "),
		len(s.prompt),
	)
	name := filepath.Join(folder, fmt.Sprintf("request-%d", number))
	return errors.Join(
		os.WriteFile(name+".routecap", data, 0o644),
		os.WriteFile(name+".json", []byte(info), 0o644),
	)
}
