// Writes a folder as a version of a module, in the layout of a Go proxy. Usage: go run . PATH
// VERSION FOLDER OUTPUT
package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	version, folder, output := module.Version{
		Path:    os.Args[1],
		Version: os.Args[2],
	}, os.Args[3], os.Args[4]
	must(os.MkdirAll(output, 0o755))
	file := func(name string) string { return filepath.Join(output, name) }
	archive, err := os.Create(file(version.Version + ".zip"))
	must(err)
	must(zip.CreateFromDir(archive, version, folder))
	must(archive.Close())
	requirements, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	must(err)
	must(os.WriteFile(file(version.Version+".mod"), requirements, 0o644))
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	must(err)
	info, err := json.Marshal(
		map[string]any{"Version": version.Version, "Time": time.Unix(seconds, 0).UTC()},
	)
	must(err)
	must(os.WriteFile(file(version.Version+".info"), info, 0o644))
	must(os.WriteFile(file("list"), []byte(version.Version+"\n"), 0o644))
}
