//go:build cgo

package routecap

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// What the program of README.md leaves to their reader, around it.
const readmeProgram = `package main

import (
	"context"
	"fmt"

	routecap "github.com/routecap/routecap/bindings/go"
)

func program(ctx context.Context, config routecap.Config, stream routecap.Stream, l, tokens uint32,
	ids, topkIDs []int32, topkWeights []float32, length, position, sequenceLength uint64) []any {
	return func() []any {
%s
		return []any{capturer, request, step, routing, result, view, err}
	}()
}

func main() { fmt.Printf("%%T", program) }
`

var (
	goBlock    = regexp.MustCompile("(?s)```go\n(.*?)```")
	importLine = regexp.MustCompile("(?m)^import .*$")
)

func TestTheProgramOfTheREADMECompiles(t *testing.T) {
	module, err := os.Getwd()
	must(t, err)
	text, err := os.ReadFile("README.md")
	must(t, err)
	blocks := goBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatal("README.md has a program, and what changes in it for weights; here are ", len(blocks))
	}
	folder := t.TempDir()
	source := fmt.Sprintf(readmeProgram, importLine.ReplaceAllString(blocks[0][1]+blocks[1][1], ""))
	must(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(source), 0o644))
	const path = "github.com/routecap/routecap/bindings/go"
	mod := fmt.Sprintf(
		"module readme\ngo 1.24\nrequire %s v1.0.0\nreplace %s => %s\n",
		path,
		path,
		module,
	)
	must(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte(mod), 0o644))
	output, err := goCommand(folder, nil, "build", "-o", os.DevNull, ".").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
