//go:build cgo

package routecap

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unsafe"
)

// The conformance vectors of the project (tests/vectors/README.md), replayed through this package.
// ROUTECAP_VECTORS names their folder; without it, it is the one beside this module in the project.
//
// The raw layer is used for what the types of this package cannot say: an unknown dtype of copies,
// lengths in bytes that are no elements, get_api for another version, reserved fields that are not
// 0.

func TestTheConformanceVectors(t *testing.T) {
	t.Setenv("ROUTECAP_CHECKED", "0") // the vectors say what becomes of slips that are forgiven
	folder := os.Getenv("ROUTECAP_VECTORS")
	if folder == "" {
		folder = "../../tests/vectors"
		if _, err := os.Stat(folder); err != nil {
			t.Skip("there are no vectors outside of the project: ROUTECAP_VECTORS can name them")
		}
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal("no vectors in ", folder)
	}
	for _, file := range files {
		if filepath.Base(file) == "abi.json" { // for C alone
			continue
		}
		replayFile(t, file)
	}
}

func replayFile(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var topic struct {
		Topic   string
		Vectors []struct {
			Name  string
			Calls []json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &topic); err != nil {
		t.Fatal(file, ": ", err)
	}
	for _, v := range topic.Vectors {
		t.Run(topic.Topic+"/"+v.Name, func(t *testing.T) {
			r := &replay{
				t:         t,
				capturers: map[string]*Capturer{},
				requests:  map[string]Request{},
				routings:  map[string]*Routing{},
				sequences: map[string]*Sequence{},
				stores:    map[string]*Store{},
				memory:    map[string][]byte{},
				positions: map[laterStep]Array{},
			}
			defer r.end()
			for i, call := range v.Calls {
				r.where = fmt.Sprintf("call %d: %.400s", i, call)
				r.call(call)
			}
		})
	}
}

// ---- What a vector says

// said is an object of a vector. Everything in it must be looked at: what the replayer does not
// know it must not pass over.
type said struct {
	r      *replay
	values map[string]any
	seen   map[string]bool
}

func (r *replay) said(value any) *said {
	values, _ := value.(map[string]any)
	s := &said{r: r, values: values, seen: map[string]bool{}}
	r.open = append(r.open, s)
	return s
}

func (s *said) value(key string) any {
	s.seen[key] = true
	return s.values[key]
}

func (s *said) has(key string) bool      { return s.value(key) != nil }
func (s *said) uint(key string) uint64   { return uinteger(s.value(key)) }
func (s *said) uint32(key string) uint32 { return uint32(s.uint(key)) }
func (s *said) int(key string) int64     { return int64(s.uint(key)) }
func (s *said) text(key string) string   { text, _ := s.value(key).(string); return text }
func (s *said) list(key string) []any    { list, _ := s.value(key).([]any); return list }
func (s *said) object(key string) *said  { return s.r.said(s.value(key)) }

func (s *said) capturer() *Capturer         { return named(s.r, s.r.capturers, s.value("capturer")) }
func (s *said) routing(key string) *Routing { return named(s.r, s.r.routings, s.value(key)) }

func (s *said) sequence() *Sequence { return named(s.r, s.r.sequences, s.value("sequence")) }
func (s *said) store() *Store       { return named(s.r, s.r.stores, s.value("store")) }
func (s *said) request() Request    { return s.r.request(s.value("request")) }
func (s *said) bytes(key string) (all []byte) {
	for _, digits := range s.list(key) {
		text, _ := digits.(string)
		part, err := hex.DecodeString(text)
		if err != nil {
			s.r.fatal(err)
		}
		all = append(all, part...)
	}
	return all
}

// named finds what a vector has named; nil if no name is given.
func named[T any](r *replay, all map[string]*T, name any) *T {
	text, ok := name.(string)
	object := all[text]
	if ok && object == nil {
		r.fatal("there is no ", text)
	}
	return object
}

// uinteger is a number of a vector in two's complement; 0 if there is none.
func uinteger(value any) uint64 {
	text := ""
	switch v := value.(type) {
	case nil:
		return 0
	case json.Number:
		text = v.String()
	case string:
		text = v
	}
	switch text {
	case "ALL":
		return RowsAll
	case "LANDED":
		return RowsLanded
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil {
		return u
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%v is no number", value))
	}
	return uint64(i)
}

func float(value any) float64 {
	text := fmt.Sprint(value) // "nan", "inf" and "-inf" too
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(text + " is no number")
	}
	return f
}

func numbers[T Element](values []any) []T {
	s := make([]T, len(values))
	for i, v := range values {
		if f, ok := any(&s[i]).(*float32); ok {
			*f = float32(float(v))
		} else {
			s[i] = T(uinteger(v))
		}
	}
	return s
}

// array makes an array of a dtype, also one that is none.
func array(values []any, dtype DType) Array {
	switch {
	case values == nil:
		return Array{}
	case dtype == DTypeF32:
		return ArrayOf(numbers[float32](values))
	}
	switch dtype.Size() {
	case 0:
		return ArrayOf(make([]uint32, len(values))).As(dtype)
	case 1:
		return ArrayOf(numbers[uint8](values)).As(dtype)
	case 2:
		return ArrayOf(numbers[uint16](values)).As(dtype)
	case 8:
		return ArrayOf(numbers[int64](values)).As(dtype)
	}
	return ArrayOf(numbers[uint32](values)).As(dtype)
}

// of is an array of int32, or one such number.
func (s *said) int32s(key string) Array {
	value := s.value(key)
	if list, ok := value.([]any); ok || value == nil {
		return array(list, DTypeI32)
	}
	return array([]any{value}, DTypeI32)
}

// ---- Structs, field by field under C's names

func cName(field string) string {
	var b strings.Builder
	for i, c := range strings.NewReplacer("DType", "Dtype", "IDs", "Ids", "ID", "Id").Replace(field) {
		if unicode.IsUpper(c) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// fields calls f with each field of a struct that is a number, a truth or a slice of numbers.
func fields(structure any, f func(name string, field reflect.Value)) {
	s := reflect.ValueOf(structure).Elem()
	for i := range s.NumField() {
		field := s.Field(i)
		switch field.Kind() {
		case reflect.Bool,
			reflect.Int32,
			reflect.Int64,
			reflect.Uint32,
			reflect.Uint64,
			reflect.Float32,
			reflect.Slice:
			f(
				cName(s.Type().Field(i).Name),
				reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem(),
			) // also if it is not exported
		}
	}
}

// fill sets the fields that a vector names.
func (s *said) fill(structure any) {
	fields(structure, func(name string, field reflect.Value) {
		value := s.values[name]
		if value == nil {
			return
		}
		if field.Type() == reflect.TypeFor[Request]() {
			field.SetUint(uint64(s.request()))
			return
		}
		switch field.Kind() {
		case reflect.Bool:
			field.SetBool(s.uint(name) != 0)
		case reflect.Int32, reflect.Int64:
			field.SetInt(s.int(name))
		case reflect.Uint32, reflect.Uint64:
			field.SetUint(s.uint(name))
		case reflect.Float32:
			field.SetFloat(float(s.value(name)))
		case reflect.Slice:
			list, ok := value.([]any)
			if !ok ||
				field.Type().Elem().Kind() != reflect.Int32 &&
					field.Type().Elem().Kind() != reflect.Uint32 {
				return
			}
			s.seen[name] = true
			field.Set(reflect.MakeSlice(field.Type(), len(list), len(list)))
			for i, v := range list {
				field.Index(i).
					Set(reflect.ValueOf(uint32(uinteger(v))).Convert(field.Type().Elem()))
			}
		}
	})
}

// same compares the fields that are expected.
func (s *said) same(structure any) {
	fields(structure, func(name string, field reflect.Value) {
		if _, expected := s.values[name]; !expected {
			return
		}
		switch field.Kind() {
		case reflect.Bool:
			s.r.equal(name, s.uint(name) != 0, field.Bool())
		case reflect.Int32, reflect.Int64:
			s.r.equal(name, s.int(name), field.Int())
		case reflect.Uint32, reflect.Uint64:
			s.r.equal(name, s.uint(name), field.Uint())
		case reflect.Float32:
			s.r.equal(name, float32(float(s.value(name))), float32(field.Float()))
		case reflect.Slice:
			list := s.list(name)
			s.r.equal(name+": length", len(list), field.Len())
			for i := range min(len(list), field.Len()) {
				s.r.equal(fmt.Sprint(name, " ", i), fmt.Sprint(list[i]), fmt.Sprint(field.Index(i)))
			}
		}
	})
}

// ---- One vector

type replay struct {
	t         *testing.T
	where     string
	capturers map[string]*Capturer
	requests  map[string]Request
	routings  map[string]*Routing
	sequences map[string]*Sequence
	stores    map[string]*Store
	memory    map[string][]byte // of bound sinks and positions: not Go's
	positions map[laterStep]Array
	loans     []*testLoan
	open      []*said // objects of the call
	status    string
	checked   bool // the status was compared
}

type testLoan struct{ taken, released int }

func (r *replay) fatal(reason ...any) {
	r.t.Helper()
	r.t.Fatalf("%s\n%s", fmt.Sprint(reason...), r.where)
}
func (r *replay) equal(what string, want, got any) {
	r.t.Helper()
	if want != got {
		r.fatal(what, " is ", got, ", not ", want)
	}
}

func (r *replay) end() {
	for _, routing := range r.routings {
		routing.Close()
	}
	for _, sequence := range r.sequences {
		sequence.Close()
	}
	for _, c := range r.capturers {
		c.Close()
	}
	for _, s := range r.stores {
		s.Close()
	}
	for _, l := range r.loans {
		r.equal("the number of releases", l.taken, l.released)
	}
	for _, m := range r.memory {
		syscall.Munmap(m)
	}
}

func (r *replay) call(text []byte) {
	var all any
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	if err := decoder.Decode(&all); err != nil {
		r.fatal(err)
	}
	r.open = nil
	whole := r.said(all)
	whole.has("raw")
	name, in, out := whole.text("call"), whole.object("in"), whole.object("out")
	r.status, r.checked = whole.text("status"), false
	if like, ok := methods[name]; ok {
		like.call(r, in, out)
	} else if byHand := calls[name]; byHand != nil {
		byHand(r, in, out)
	} else {
		r.fatal("no such call")
	}
	if r.status != "" && !r.checked {
		r.fatal("the status was not compared")
	}
	for _, s := range r.open {
		for key := range s.values {
			if !s.seen[key] {
				r.fatal("not known: ", key)
			}
		}
	}
}

// returned compares what a call has returned with the status of the vector, and says whether it
// delivers its outputs.
func (r *replay) returned(result Result, err error) bool {
	r.t.Helper()
	r.checked = true
	var failure *Error
	switch {
	case errors.As(err, &failure):
		result = Result{failure.Status, failure.Text}
	case err != nil && result.Status != Pending: // the end of a context
		r.fatal(err)
	}
	if result.Status.String() != r.status {
		r.fatal("the status is ", result.Status, " (", result.Text, ")")
	}
	hasText := result.Status < 0 || result.Status == Incomplete || result.Status == NotCaptured ||
		result.Status == Partial || result.Status == Lost
	if hasText && (result.Text == "" || strings.Contains(result.Text, "\n")) {
		r.fatal("the text is ", strconv.Quote(result.Text))
	}
	return result.Status >= 0
}

// done is returned for calls that return an error only.
func (r *replay) done(err error) bool {
	r.t.Helper()
	return r.returned(Result{}, err)
}

func (r *replay) request(name any) Request {
	if text, ok := name.(string); ok {
		handle, ok := r.requests[text]
		if !ok {
			r.fatal("no such request: ", text)
		}
		return handle
	}
	return Request(uinteger(name))
}

func (r *replay) bindRequest(name any, handle Request) {
	text, ok := name.(string)
	if !ok {
		r.equal("the handle", Request(uinteger(name)), handle)
		return
	}
	if handle == 0 {
		r.fatal("there is no ", text)
	}
	for other, h := range r.requests {
		if h == handle {
			r.fatal(text, " has the handle of ", other)
		}
	}
	r.requests[text] = handle
}

// made binds a routing to the name it is expected under; after an error there is none.
func (r *replay) made(delivered bool, name any, routing *Routing) {
	r.t.Helper()
	text, ok := name.(string)
	if (delivered && ok) != (routing != nil) {
		r.fatal("a routing: ", routing != nil)
	}
	if routing != nil {
		r.routings[text] = routing
	}
}

func (r *replay) statuses(out *said, status []Status) {
	if !out.has("status") {
		return
	}
	names := out.list("status")
	r.equal("the number of statuses", len(names), len(status))
	for i, name := range names {
		r.equal(fmt.Sprint("status ", i), name, status[i].String())
	}
}

// waiting is a context for timeout_ns.
func waiting(in *said) (context.Context, context.CancelFunc) {
	timeout := in.int("timeout_ns")
	if timeout < 0 {
		return context.Background(), func() {}
	}
	return context.WithTimeout(context.Background(), time.Duration(timeout))
}

// ---- Buffers that a call may write

const untouched = 77

func buffer[T Element](elements int) []T {
	b := make([]T, elements)
	for i := range b {
		b[i] = untouched
	}
	return b
}

// wrote compares a whole buffer, and that nothing is written after an error.
func wrote[T Element](
	r *replay,
	delivered bool,
	out *said,
	key string,
	got []T,
	tolerance float64,
) {
	r.t.Helper()
	if !delivered {
		for i, v := range got {
			if v != untouched {
				r.fatal(key, " ", i, " was written")
			}
		}
		return
	}
	if !out.has(key) {
		return
	}
	want := out.list(key)
	r.equal(key+": length", len(want), len(got))
	for i := range want {
		if tolerance > 0 {
			if w := float(want[i]); !(math.Abs(w-float64(got[i])) <= tolerance) {
				r.fatal(key, " ", i, " is ", got[i], ", not ", w)
			}
		} else if T(uinteger(want[i])) != got[i] {
			r.fatal(key, " ", i, " is ", got[i], ", not ", want[i])
		}
	}
}
