//go:build cgo

package routecap

import (
	"context"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
)

// Calls that are made as their functions are declared: zz_vectors_test.go has them. Each parameter is
// made of what the vector says under its name, by its type, and each result is compared by its type.

type method struct {
	function       reflect.Value
	given, results []string
}

var methods = map[string]method{}

func callsLike(name string, function any, given, results string) {
	methods[name] = method{reflect.ValueOf(function), strings.Fields(given), strings.Fields(results)}
}

func (m method) call(r *replay, in, out *said) {
	function := m.function.Type()
	r.equal("the number of parameters", len(m.given), function.NumIn())
	arguments := make([]reflect.Value, len(m.given))
	for i, name := range m.given {
		arguments[i] = m.argument(r, function.In(i), name, in, out)
	}
	call := m.function.Call
	if function.IsVariadic() {
		call = m.function.CallSlice
	}
	if r.status == "" { // what frees says nothing
		if !arguments[0].IsNil() {
			call(arguments)
			r.forget(in.text(m.given[0]))
		}
		return
	}
	m.compare(r, arguments, call(arguments), in, out)
}

func (m method) argument(r *replay, kind reflect.Type, name string, in, out *said) reflect.Value {
	if kind == reflect.TypeFor[context.Context]() {
		ctx, cancel := waiting(in)
		r.t.Cleanup(cancel)
		return reflect.ValueOf(ctx)
	}
	value := reflect.New(kind).Elem()
	switch to := value.Addr().Interface().(type) {
	case **Capturer:
		*to = in.capturer()
	case **Routing:
		*to = in.routing(name)
	case **Sequence:
		*to = in.sequence()
	case **Store:
		*to = in.store()
	case *[]*Routing:
		for _, each := range in.list(name) {
			*to = append(*to, named(r, r.routings, each))
		}
	case *Request:
		*to = r.request(in.value(name))
	case *[]Request:
		for _, each := range in.list(name) {
			*to = append(*to, r.request(each))
		}
	case *[]byte:
		*to = in.bytes(name)
	case *[]int32:
		*to = numbers[int32](in.list(name))
	case *[]Status: // of each of the array before
		if out.has(name) {
			*to = make([]Status, len(in.list(m.given[1])))
		}
	case *[]Reason:
		*to = make([]Reason, len(in.bytes("keys"))/in.store().keyBytes)
	case *Config:
		*to = r.config(in.object(name))
	default:
		switch kind.Kind() {
		case reflect.Int32, reflect.Int64:
			value.SetInt(in.int(name))
		case reflect.Uint32, reflect.Uint64, reflect.Uintptr:
			value.SetUint(in.uint(name))
		case reflect.Struct:
			in.object(name).fill(value.Addr().Interface())
		case reflect.Slice: // of structs, given or to be filled
			list := in.list(name)
			count := max(len(list), int(in.uint("count")), int(in.uint("capacity")))
			value.Set(reflect.MakeSlice(kind, count, count))
			for i, each := range list {
				r.said(each).fill(value.Index(i).Addr().Interface())
			}
		default:
			r.fatal("no argument of a vector is a ", kind)
		}
	}
	return value
}

func (m method) compare(r *replay, arguments, results []reflect.Value, in, out *said) {
	last := len(results) - 1
	err, _ := results[last].Interface().(error)
	var result Result
	if last > 0 {
		if said, ok := results[last-1].Interface().(Result); ok {
			result, last = said, last-1
		}
	}
	delivered := r.returned(result, err)
	for i, each := range results[:max(last, 0)] {
		if routings, ok := each.Interface().([]*Routing); ok {
			r.madeBatch(delivered, out, routings)
			continue
		}
		m.result(r, delivered, m.results[i:], each, in, out)
	}
	for i, name := range m.given {
		if each := arguments[i]; delivered && each.Kind() == reflect.Slice {
			r.filled(name, each, in, out)
		}
	}
}

// result compares what a call returned under the first of the names.
func (m method) result(r *replay, delivered bool, names []string, got reflect.Value, in, out *said) {
	name := names[0]
	switch value := got.Interface().(type) {
	case *Routing:
		r.made(delivered, out.value(name), value)
		return
	case *Sequence:
		r.sequence(delivered, out.value(name), value)
		return
	case Request:
		if delivered {
			r.bindRequest(out.value(name), value)
		} else {
			r.equal(name, Request(0), value)
		}
		return
	}
	switch got.Kind() {
	case reflect.Uint64:
		if out.has(name) {
			r.equal(name, out.uint(name), got.Uint())
		}
	case reflect.Struct:
		if delivered {
			value := reflect.New(got.Type())
			value.Elem().Set(got)
			out.object(name).same(value.Interface())
		}
	case reflect.Slice:
		capacity := int(in.uint("capacity"))
		if !delivered {
			return
		}
		if len(names) > 1 && out.has(names[1]) { // count or needed
			r.equal(names[1], out.uint(names[1]), uint64(got.Len()))
		}
		switch shown := got.Interface().(type) {
		case []byte:
			r.equal(name, hex.EncodeToString(out.bytes(name)), hex.EncodeToString(shown))
		case []int32:
			shown = shown[:min(len(shown), capacity)]
			r.equal(name, fmt.Sprint(numbers[int32](out.list(name))), fmt.Sprint(shown))
		default:
			r.structs(name, got.Slice(0, min(got.Len(), capacity)), out)
		}
	default:
		r.fatal("no result of a vector is a ", got.Type())
	}
}

// filled compares what a call has written into a slice that it was given.
func (r *replay) filled(name string, slice reflect.Value, in, out *said) {
	switch written := slice.Interface().(type) {
	case []Status:
		r.statuses(out, written)
		return
	case []Reason:
		r.reasons(out, written)
		return
	}
	if slice.Type().Elem().Kind() != reflect.Struct {
		return
	}
	if in.has(name) { // items
		status := make([]Status, slice.Len())
		for i := range status {
			status[i] = slice.Index(i).FieldByName("Status").Interface().(Status)
		}
		r.statuses(out, status)
		return
	}
	if out.has(name) {
		count := slice.Len()
		for in.has("capacity") && count > 0 && slice.Index(count-1).IsZero() {
			count-- // there are no more
		}
		r.structs(name, slice.Slice(0, count), out)
	}
}

func (r *replay) structs(name string, got reflect.Value, out *said) {
	expected := out.list(name)
	r.equal("the number of "+name, len(expected), got.Len())
	for i, each := range expected {
		value := reflect.New(got.Type().Elem())
		value.Elem().Set(got.Index(i))
		r.said(each).same(value.Interface())
	}
}

func (r *replay) forget(name string) {
	delete(r.capturers, name)
	delete(r.routings, name)
	delete(r.sequences, name)
	delete(r.stores, name)
}
