//go:build cgo

package routecap

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A program that is built without cgo, as Go does by itself where there is no C compiler.
func TestWithoutCgoTheCompilerSaysThatItIsMissing(t *testing.T) {
	for _, command := range []string{"build", "vet"} {
		for _, of := range []string{".", "./examples/worker_loop"} {
			output, err := goCommand(".", []string{"CGO_ENABLED=0"}, command, of).CombinedOutput()
			if err == nil {
				t.Errorf("go %s %s succeeds without cgo", command, of)
			}
			text := string(output)
			if !strings.Contains(text, "routecap needs cgo") ||
				strings.Contains(text, "undefined") {
				t.Errorf("go %s %s says:\n%s", command, of, text)
			}
		}
	}
}

func goCommand(folder string, environment []string, arguments ...string) *exec.Cmd {
	command := exec.Command("go", arguments...)
	command.Dir = folder
	command.Env = append(os.Environ(), environment...)
	return command
}
