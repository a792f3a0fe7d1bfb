// Generate writes zz_generated.go, the raw layer: every constant, struct and function of the
// headers.
//
//	go run ./internal/generate [-headers FOLDER] [-check | -check-headers]
//
// Declarations come from clang's syntax tree, macros and comments from the text of all headers in
// one file (include/single.sh). With -check nothing is written; it fails if the file is not what
// would be. Whatever the tables below do not know stops it, so that an addition is noticed.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"go/format"
	"log"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// Constants by the beginning of their names: Go's name for that beginning, and their type, which
// types.go has.
var constants = []struct{ prefix, name, kind string }{
	{"ROUTECAP_VERSION_", "HeaderVersion", ""},
	{"ROUTECAP_DTYPE_", "DType", "DType"},
	{"ROUTECAP_BACKEND_", "Backend", "Backend"},
	{"ROUTECAP_ROLE_", "Role", "Role"},
	{"ROUTECAP_ID_SPACE_", "IDSpace", "IDSpace"},
	{"ROUTECAP_PROVENANCE_", "Provenance", "Provenance"},
	{"ROUTECAP_CONFIG_", "Config", "ConfigFlags"},
	{"ROUTECAP_SCORE_", "Score", "Score"},
	{"ROUTECAP_GROUP_", "Group", "GroupScore"},
	{"ROUTECAP_ROUTER_", "Router", "RouterFlags"},
	{"ROUTECAP_METHOD_", "Method", "Method"},
	{"ROUTECAP_PROBE_", "Probe", "ProbeFlags"},
	{"ROUTECAP_RECEIVED_", "Received", "ReceivedFlags"},
	{"ROUTECAP_SOURCE_", "Source", "SourceFlags"},
	{"ROUTECAP_SPAN_", "Span", "SpanFlags"},
	{"ROUTECAP_SNAPSHOT_", "Snapshot", "Snapshot"},
	{"ROUTECAP_POLICY_", "Policy", "Policy"},
	{"ROUTECAP_MISSING_", "Missing", "Reason"},
	{"ROUTECAP_EXTRACT_", "Extract", "ExtractMode"},
	{"ROUTECAP_ORDER_", "Order", "Order"},
	{"ROUTECAP_PIECE_", "Piece", "PieceSource"},
	{"ROUTECAP_MAX_", "Max", ""},
	{"ROUTECAP_SERIALIZED_", "Serialized", ""},
	{"ROUTECAP_ERR_", "Err", "Status"},
	{"ROUTECAP_ROWS_", "Rows", "uint64"},
	{"ROUTECAP_READ_", "Read", "ReadFlags"},
	{"ROUTECAP_IMPORT_", "Import", "ImportFlags"},
	{"ROUTECAP_STORE_", "Store", "StoreFlags"},
	{"ROUTECAP_MIN_", "Min", ""},
	{"ROUTECAP_WIRE_FACT_", "WireFact", "WireFacts"},
	{"ROUTECAP_WIRE_COLUMNS_", "WireColumns", "WireColumns"},
	{"ROUTECAP_WIRE_HINT_", "WireHint", "WireHintFlags"},
	{"ROUTECAP_WIRE_", "Wire", "WireFormat"},
	{"ROUTECAP_APPEND_", "Append", "AppendPolicy"},
	{"ROUTECAP_SEQUENCE_", "Sequence", "SequenceFlags"},
	{"ROUTECAP_DIGEST_", "Digest", ""},
	{"ROUTECAP_PHASE_", "Phase", "Phase"},
	{"ROUTECAP_LOAD_", "Load", ""},
	{"ROUTECAP_PLAN_LAYOUT_", "PlanLayout", "PlanLayout"},
	{"ROUTECAP_PLAN_CONTEXT_", "PlanContext", "PlanContext"},
	{"ROUTECAP_PLAN_SEQUENCE_", "PlanSequence", "PlanFlags"},
	{"ROUTECAP_PLAN_FILL_", "PlanFill", "PlanFill"},
	{"ROUTECAP_PLAN_LOST_", "PlanLost", "PlanLost"},
	{"ROUTECAP_PLAN_CLASS_", "PlanClass", "PlanClass"},
	{"ROUTECAP_PLAN_RANK_", "PlanRank", "uint32"},
	{"ROUTECAP_LOG_", "log", ""},
}
var constantsAlone = map[string]string{ // name: type
	"ROUTECAP_OK": "Status", "ROUTECAP_INCOMPLETE": "Status", "ROUTECAP_LOST": "Status", "ROUTECAP_PENDING": "Status",
	"ROUTECAP_PARTIAL": "Status", "ROUTECAP_NOT_CAPTURED": "Status",
}
var notConstants = []string{"ROUTECAP_API"}

// Structs that users of the package see as they are. The others get a name with a c in front, and
// hand-written types on top.
var public = map[string]string{
	"routecap_memory": "Memory", "routecap_stats": "Stats", "routecap_layer_stats": "LayerStats", "routecap_sink": "Sink",
	"routecap_layer_probe": "LayerProbe", "routecap_span": "Span", "routecap_accept_item": "AcceptItem", "routecap_missing": "Missing",
	"routecap_coverage": "Coverage", "routecap_extract_item": "ExtractItem", "routecap_copy_options": "CopyOptions",
	"routecap_finish_item": "FinishItem", "routecap_serialized": "Serialized", "routecap_piece": "Piece",
	"routecap_wire_info": "WireInfo", "routecap_wire_report": "WireReport", "routecap_wire_options": "WireOptions",
	"routecap_store_counts": "StoreStats", "routecap_adoption": "Adoption",
	"routecap_append_options": "AppendOptions", "routecap_append_report": "AppendReport", "routecap_sequence_span": "SequenceSpan",
	"routecap_plan_shape": "PlanShape", "routecap_plan_range": "PlanRange", "routecap_plan_run": "PlanRun", "routecap_plan_report": "PlanReport",
}

var notStructs = []string{
	"routecap_api",
} // the function table is for programs that do not link the library

// Types of fields that are plain integers in C, by "struct.field" or "field".
var fieldTypes = map[string]string{
	"dtype": "DType", "sink_dtype": "DType", "bias_dtype": "DType", "tokens_dtype": "DType", "positions_dtype": "DType",
	"backend": "Backend", "role": "Role", "id_space": "IDSpace", "status": "Status", "policy": "Policy", "snapshot": "Snapshot",
	"mode": "ExtractMode", "order": "Order", "reason": "Reason", "score": "Score", "group_score": "GroupScore", "routecap_layer_probe.found": "ProbeFlags",
	"routecap_piece.source": "PieceSource", "routecap_config.flags": "ConfigFlags", "routecap_router.flags": "RouterFlags",
	"routecap_source.flags": "SourceFlags", "routecap_received.flags": "ReceivedFlags", "routecap_span.flags": "SpanFlags",
	"routecap_extract_item.flags": "ReadFlags", "routecap_copy_options.flags": "ReadFlags",
	"format": "WireFormat", "facts": "WireFacts", "lost": "WireFacts", "allow": "WireFacts", "column_kind": "WireColumns",
	"routecap_wire_hint.flags": "WireHintFlags", "routecap_store_config.flags": "StoreFlags", "routecap_store_counts.flags": "StoreFlags",
	"routecap_append_options.policy": "AppendPolicy",
	"routecap_plan_config.layout":    "PlanLayout", "routecap_plan_config.context": "PlanContext", "routecap_plan_config.flags": "PlanFlags",
	"routecap_plan_config.fill": "PlanFill", "routecap_plan_config.lost": "PlanLost", "row_class": "PlanClass",
}

// Fields of public structs that the package fills itself, as it does pointers.
var private = []string{
	"struct_size",
	"reserved",
	"routecap_copy_options.dtype",
	"routecap_append_options.flags",
}

// Functions without a wrapper: every wrapper calls this one itself.
var notFunctions = []string{"routecap_last_error"}

// node is what is read of clang's.
type node struct {
	Kind, Name         string
	Loc                struct{ Offset int }
	Type               struct{ QualType string }
	CompleteDefinition bool
	Inner              []node
}

type generator struct {
	header string
	names  map[string]string // of constants: C's to Go's
	out    bytes.Buffer
}

func main() {
	log.SetFlags(0)
	headers := flag.String("headers", "../../include", "the folder of routecap.h")
	output := flag.String("output", "zz_generated.go", "the file to write")
	check := flag.Bool("check", false, "write nothing, fail if the file is out of date")
	checkHeaders := flag.Bool(
		"check-headers",
		false,
		"write nothing, fail if the file was made of other headers, which needs no clang",
	)
	flag.Parse()

	text := run("sh", nil, *headers+"/single.sh")
	if *checkHeaders {
		if old, err := os.ReadFile(*output); err != nil || !bytes.HasPrefix(old, opening(text)) {
			log.Fatalf("%s is of other headers: run go generate", *output)
		}
		return
	}
	source := generate(string(text), tree(text))
	if !*check {
		if err := os.WriteFile(*output, source, 0o644); err != nil {
			log.Fatal(err)
		}
		return
	}
	if old, err := os.ReadFile(*output); err != nil || !bytes.Equal(old, source) {
		log.Fatalf("%s is out of date: run go generate", *output)
	}
}

// opening returns the first lines of the generated file, which name the header that it is made of.
func opening(header []byte) []byte {
	return fmt.Appendf(
		nil,
		"// Code generated by internal/generate from routecap.h. DO NOT EDIT.\n"+
			"// Of a header with the SHA-256 %x.\n\npackage routecap\n\n",
		sha256.Sum256(header),
	)
}

// run returns what a program writes when it is given input.
func run(name string, input []byte, arguments ...string) []byte {
	command := exec.Command(name, arguments...)
	command.Stdin = bytes.NewReader(input)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		log.Fatalf("%s: %v", name, err)
	}
	return output
}

// tree returns the declarations of a header, without those of the system.
func tree(header []byte) []node {
	var unit node
	dump := run("clang", header, "-Xclang", "-ast-dump=json", "-fsyntax-only", "-x", "c", "-")
	if err := json.Unmarshal(dump, &unit); err != nil {
		log.Fatal(err)
	}
	return slices.DeleteFunc(
		unit.Inner,
		func(n node) bool { return !strings.HasPrefix(n.Name, "routecap_") },
	)
}

func generate(header string, declarations []node) []byte {
	g := &generator{header: header, names: map[string]string{}}
	for _, match := range typedef.FindAllStringSubmatch(header, -1) {
		integers[match[2]] = match[1]
	}
	var constants, structs, checks, preamble, wrappers bytes.Buffer
	g.constants(&constants)
	for _, n := range declarations {
		switch {
		case n.Kind == "RecordDecl" && n.CompleteDefinition && !slices.Contains(notStructs, n.Name):
			g.structure(&structs, &checks, n)
		case n.Kind == "FunctionDecl" && !slices.Contains(notFunctions, n.Name):
			g.function(&preamble, &wrappers, n)
		}
	}
	g.out.Write(opening([]byte(header)))
	fmt.Fprintf(&g.out, "/*\n%s%s*/\nimport \"C\"\nimport \"unsafe\"\n\n", intro, preamble.String())
	g.out.Write(constants.Bytes())
	g.out.Write(structs.Bytes())
	fmt.Fprintf(
		&g.out,
		"// The layout of the structs above is C's: what is not does not compile.\nvar (\n%s)\n\n%s",
		checks.String(),
		resultOf,
	)
	g.out.Write(wrappers.Bytes())
	source, err := format.Source(g.out.Bytes())
	if err != nil {
		log.Fatalf("%v in\n%s", err, g.out.String())
	}
	return source
}

// What all wrappers share. They call the function and fetch its text in one crossing: the text
// belongs to the thread, and the next call of a goroutine may run on another one. No function of
// the library calls Go, and none keeps a pointer to Go memory unless it is lent (lend.go), which is
// pinned: so their arguments need not escape.
const intro = `#include "lend.h"
#include "log.h"
#include <routecap.h>
#include <stdlib.h>
#include <string.h>

typedef struct raw_result {
    int32_t status;
    char *text; // to be freed; NULL: none
} raw_result;

static raw_result raw_return(int32_t status) {
    int has_text = status < 0 || status == ROUTECAP_INCOMPLETE || status == ROUTECAP_NOT_CAPTURED ||
                   status == ROUTECAP_PARTIAL || status == ROUTECAP_LOST;
    return (raw_result){status, has_text ? strdup(routecap_last_error()) : NULL};
}

`

const resultOf = `
// resultOf takes over the text.
func resultOf(r C.raw_result) Result {
	if r.text == nil {
		return Result{Status: Status(r.status)}
	}
	text := C.GoString(r.text)
	C.free(unsafe.Pointer(r.text))
	return Result{Status(r.status), text}
}

`

// ---- Constants

var define = regexp.MustCompile(`(?m)^#define (ROUTECAP_\w+) +(\S+)`)

func (g *generator) constants(out *bytes.Buffer) {
	type constant struct {
		c, name, kind, value, comment string
		begin, end                    int
	}
	var all []constant
	for _, at := range define.FindAllStringSubmatchIndex(g.header, -1) {
		name := g.header[at[2]:at[3]]
		if slices.Contains(notConstants, name) {
			continue
		}
		value := strings.Trim(g.header[at[4]:at[5]], "()")
		value = regexp.MustCompile(`(?i)^(-?(?:0x[0-9a-f]+|\d+))u?l*$`).
			ReplaceAllString(value, "$1")
		goName, kind := constantName(name)
		g.names[name] = goName
		comment, end := g.trailing(at[5])
		all = append(all, constant{name, goName, kind, value, comment, at[0], end})
	}
	for i, c := range all {
		if i == 0 || strings.Contains(g.header[all[i-1].end:c.begin], "\n\n") { // a block
			if i > 0 {
				out.WriteString(")\n\n")
			}
			write(out, "", g.translated(g.leading(c.begin)))
			out.WriteString("const (\n")
		}
		comment := c.name + " is " + c.c
		if c.comment != "" {
			comment += ": " + g.translated(c.comment)
		}
		write(out, "\t", comment)
		fmt.Fprintf(out, "\t%s %s = %s\n", c.name, c.kind, c.value)
	}
	out.WriteString(")\n\n")
}

func constantName(name string) (goName, kind string) {
	if kind, ok := constantsAlone[name]; ok {
		return camel(strings.ToLower(strings.TrimPrefix(name, "ROUTECAP_")), true), kind
	}
	for _, c := range constants {
		if rest, ok := strings.CutPrefix(name, c.prefix); ok {
			return c.name + camel(strings.ToLower(rest), true), c.kind
		}
	}
	log.Fatalf("the generator does not know what %s is", name)
	return
}

// ---- Structs

func (g *generator) structure(out, checks *bytes.Buffer, n node) {
	name, exported := public[n.Name]
	if !exported {
		name = structName(n.Name)
	}
	begin := strings.LastIndex(g.header[:n.Loc.Offset], "typedef")
	comment := g.leading(begin)
	write(out, "", name+" is "+n.Name+". "+g.translated(comment))
	fmt.Fprintf(out, "type %s struct {\n", name)
	for _, f := range n.Inner {
		if f.Kind != "FieldDecl" {
			continue
		}
		comment, _ := g.trailing(f.Loc.Offset + strings.IndexByte(g.header[f.Loc.Offset:], ';') + 1)
		kind := fieldType(n.Name, f, comment)
		hidden := slices.Contains(private, f.Name) || slices.Contains(private, n.Name+"."+f.Name) ||
			kind == "unsafe.Pointer"
		field := camel(f.Name, exported && !hidden)
		fmt.Fprintf(
			checks,
			"_ = [1]struct{}{}[unsafe.Offsetof(%s{}.%s)-unsafe.Offsetof(C.%s{}.%s)]\n",
			name,
			field,
			n.Name,
			f.Name,
		)
		if exported && !hidden {
			write(out, "\t", g.translated(comment))
		}
		fmt.Fprintf(out, "\t%s %s\n", field, kind)
	}
	out.WriteString("}\n\n")
	fmt.Fprintf(
		checks,
		"_ [C.sizeof_%s - unsafe.Sizeof(%s{})]struct{} // the library's may be newer and longer\n",
		n.Name,
		name,
	)
}

func structName(
	name string,
) string {
	return "c" + camel(strings.TrimPrefix(name, "routecap_"), true)
}

func fieldType(structure string, f node, comment string) string {
	c := f.Type.QualType
	if strings.HasSuffix(c, "*") {
		if strings.Contains(comment, "[device]") {
			return "DevicePointer"
		}
		return "unsafe.Pointer"
	}
	for _, key := range []string{structure + "." + f.Name, f.Name} {
		if kind, ok := fieldTypes[key]; ok {
			return kind
		}
	}
	return integer(c)
}

// integers are C's typedefs of integers, by their names.
var integers = map[string]string{}

var typedef = regexp.MustCompile(`(?m)^typedef (u?int\d+_t) (routecap_\w+);`)

func integer(c string) string {
	if c != "routecap_request" && c != "routecap_step" && integers[c] != "" {
		c = integers[c]
	}
	kind, ok := map[string]string{"uint8_t": "uint8", "int32_t": "int32", "uint32_t": "uint32", "int64_t": "int64", "uint64_t": "uint64",
		"size_t": "uintptr", "float": "float32", "routecap_request": "Request", "routecap_step": "Step", "routecap_stream": "Stream"}[c]
	if !ok {
		log.Fatalf("the generator does not know the type %s", c)
	}
	return kind
}

// ---- Functions

func (g *generator) function(preamble, wrappers *bytes.Buffer, n node) {
	var parameters, arguments, passed, received []string
	for _, p := range n.Inner {
		if p.Kind != "ParmVarDecl" {
			continue
		}
		c, name := p.Type.QualType, camel(p.Name, false)
		if c != "routecap_release" && c != "routecap_log" {
			kind, argument := parameter(c, p.Name, name)
			received = append(received, name+" "+kind)
			passed = append(passed, argument)
		}
		switch c {
		case "routecap_stream": // small numbers are streams too, and no pointers that Go could hold
			parameters = append(parameters, "uintptr_t "+p.Name)
			arguments = append(arguments, "(routecap_stream)"+p.Name)
		case "routecap_release": // what has a context is lent, see lend.go
			arguments = append(arguments, "context != NULL ? routecap_go_release : NULL")
		case "routecap_log": // likewise, see log.go
			arguments = append(arguments, "context != NULL ? routecap_go_log : NULL")
		default:
			parameters = append(parameters, strings.ReplaceAll(c+" "+p.Name, "* ", "*"))
			arguments = append(arguments, p.Name)
		}
	}
	raw := "raw_" + strings.TrimPrefix(n.Name, "routecap_")
	call := n.Name + "(" + lines(arguments, "\n        ", "") + ")"
	returned, _, _ := strings.Cut(n.Type.QualType, "(")
	cResult, goResult, open, shut := "raw_result", "Result", "resultOf(", ")"
	switch strings.TrimSpace(returned) {
	case "int32_t", "routecap_status":
		call = "raw_return(" + call + ")"
	case "uint32_t":
		cResult, goResult, open = "uint32_t", "uint32", "uint32("
	case "const char *":
		cResult, goResult, open = "const char *", "string", "C.GoString("
	case "const routecap_api *":
		cResult, goResult, open = "const void *", "unsafe.Pointer", "unsafe.Pointer("
	case "void":
		cResult, goResult, open, shut = "void", "", "", ""
	default:
		log.Fatalf("the generator does not know what %s returns", n.Name)
	}
	statement := "return "
	if cResult == "void" {
		statement = ""
	}
	if len(parameters) == 0 {
		parameters = []string{"void"}
	}
	fmt.Fprintf(
		preamble,
		"static %s %s(%s) {\n    %s%s;\n}\n#cgo noescape %s\n#cgo nocallback %s\n",
		cResult,
		raw,
		lines(parameters, "\n    ", ""),
		statement,
		call,
		raw,
		raw,
	)
	fmt.Fprintf(
		wrappers,
		"func %s(%s) %s {\n\t%s%sC.%s(%s)%s\n}\n\n",
		n.Name,
		lines(received, "\n", ","),
		goResult,
		statement,
		open,
		raw,
		lines(passed, "\n", ","),
		shut,
	)
}

// lines joins a list in lines of 110 columns, or in one if that is enough.
func lines(list []string, newline, end string) string {
	all, length := "", 0
	for _, item := range list {
		if length+len(item) > 110 {
			all, length = strings.TrimSuffix(all, " ")+newline, 0
		}
		all += item + ", "
		length += len(item) + 2
	}
	all = strings.TrimSuffix(all, ", ")
	if strings.Contains(all, "\n") && end != "" {
		return newline + all + end + newline
	}
	return all
}

// parameter returns the Go type of a parameter and the expression that passes it.
func parameter(c, name, goName string) (kind, argument string) {
	switch bare := strings.ReplaceAll(c, "const ", ""); {
	case c == "routecap_stream":
		return "Stream", "C.uintptr_t(" + goName + ")"
	case bare == "char *": // bytes that end with a zero
		return "*byte", "(*C.char)(unsafe.Pointer(" + goName + "))"
	case bare == "routecap_capturer *" || bare == "routecap_routing *" || bare == "routecap_wire_decoder *" ||
		bare == "routecap_store *" || bare == "routecap_sequence *" || bare == "routecap_plan *":
		return "unsafe.Pointer", "(*C." + strings.TrimSuffix(bare, " *") + ")(" + goName + ")"
	case bare == "void *":
		return "unsafe.Pointer", goName
	case bare == "void **":
		return "*unsafe.Pointer", goName
	// to handles, or to host arrays
	case strings.Contains(bare, "**") || strings.Contains(bare, "*const *"):
		stars := strings.TrimSpace(
			strings.ReplaceAll(strings.ReplaceAll(bare, "*const *", "**"), " *const", " *"),
		)
		return "*unsafe.Pointer", "(**C." + strings.Fields(stars)[0] + ")(unsafe.Pointer(" + goName + "))"
	case strings.HasSuffix(bare, " *"):
		element := strings.TrimSuffix(bare, " *")
		kind, ok := public[element]
		switch {
		case ok:
		case name == "status":
			kind = "Status"
		case element == "routecap_request",
			element == "routecap_step",
			integers[element] != "",
			!strings.HasPrefix(element, "routecap_"):
			kind = integer(element)
		default:
			kind = structName(element)
		}
		return "*" + kind, "(*C." + element + ")(unsafe.Pointer(" + goName + "))"
	}
	return integer(c), "C." + c + "(" + goName + ")"
}

// ---- Names and comments

// Words that Go writes otherwise than with one capital.
var words = map[string]string{
	"id":       "ID",
	"ids":      "IDs",
	"cuda":     "CUDA",
	"ok":       "OK",
	"dtype":    "DType",
	"id16":     "ID16",
	"bf16":     "BF16",
	"topk":     "TopK",
	"deepseek": "DeepSeek",
}

// camel turns a C name into a Go name.
func camel(name string, exported bool) string {
	if name == "type" || name == "range" || name == "map" {
		name += "_"
	}
	var b strings.Builder
	for i, word := range strings.Split(name, "_") {
		switch {
		case i == 0 && !exported:
			b.WriteString(word)
		case words[word] != "":
			b.WriteString(words[word])
		case word != "":
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// trailing returns the comment on the rest of the line that the offset is in, which may go on on
// the next ones, and where it ends.
func (g *generator) trailing(offset int) (comment string, end int) {
	line := g.header[offset : offset+strings.IndexByte(g.header[offset:], '\n')]
	start := strings.Index(line, "/*")
	if start < 0 {
		return "", offset + len(line)
	}
	end = offset + strings.Index(g.header[offset:], "*/") + 2
	return plain(g.header[offset+start : end]), end
}

// leading returns the comment that ends on the line before the one at the offset, if there is one.
func (g *generator) leading(offset int) string {
	before := strings.TrimSuffix(g.header[:offset], "\n")
	start := strings.LastIndex(before, "/*")
	if !strings.HasSuffix(before, "*/") || strings.Contains(before[start:], "====") {
		return ""
	}
	// it belongs to what stands before it
	if lineStart := strings.LastIndexByte(before[:start], '\n') + 1; lineStart != start {
		return ""
	}
	return plain(before[start:])
}

// plain is a comment as one line of words.
func plain(comment string) string {
	comment = strings.Trim(comment, "/*")
	comment = regexp.MustCompile(`\n \*`).ReplaceAllString(comment, " ")
	return strings.Join(strings.Fields(comment), " ")
}

var cName = regexp.MustCompile(`ROUTECAP_[A-Z0-9_]*[A-Z0-9](_\*)?`)

// translated is a comment with Go's names for C's constants.
func (g *generator) translated(text string) string {
	return cName.ReplaceAllStringFunc(text, func(name string) string {
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			for _, c := range constants {
				if c.prefix == prefix {
					return c.name + "*"
				}
			}
		}
		if goName, ok := g.names[name]; ok {
			return goName
		}
		return name
	})
}

// write writes a comment in lines of 120 columns.
func write(out *bytes.Buffer, indent, text string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+len(word) > 116 {
			fmt.Fprintf(out, "%s// %s\n", indent, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	if line != "" {
		fmt.Fprintf(out, "%s// %s\n", indent, line)
	}
}
