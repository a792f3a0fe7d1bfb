//go:build cgo

package routecap

import (
	"errors"
	"fmt"
)

// Status is what a function of the library returned: OK, or a positive value for partial success
// with all outputs delivered, or a negative one for an error, after which nothing has changed. The
// negative ones are errors to compare with:
//
//	if errors.Is(err, routecap.ErrUnknownRequest) { ... }
type Status int32

// String returns the C name, "ROUTECAP_ERR_CAPACITY" for instance, or "ROUTECAP_STATUS_UNKNOWN"
// (routecap_status_name).
func (s Status) String() string { return routecap_status_name(int32(s)) }

// Error returns what String does.
func (s Status) Error() string { return s.String() }

// Error is a failed call.
type Error struct {
	Op     string // the function of the library, "routecap_step_issue" for instance
	Status Status // negative
	// what was wrong, in one line: routecap_last_error of this very call, or what this package has
	// refused itself
	Text string
}

func (e *Error) Error() string { return e.Op + ": " + e.Text + " (" + e.Status.String() + ")" }

// Unwrap returns the status.
func (e *Error) Unwrap() error { return e.Status }

// Is reports whether the target is ErrClosed and the call was made after Close.
func (e *Error) Is(target error) bool { return target == ErrClosed && e.Text == closed.Text }

// ErrClosed is what calls after Close fail with, which have the status ErrState.
var ErrClosed = errors.New("routecap: " + closed.Text)

// closed is the outcome of those calls.
var closed = Result{ErrState, "closed"}

// LostError is what Issue says of a step that is lost: too many were in flight or its copy failed, and all
// its rows are missing. It is an error so that nobody overlooks it, and the only one with which a
// call has done something: the step has its ticket, which all calls take.
//
//	if errors.Is(err, routecap.ErrLost) { ... }
type LostError struct {
	Step Step   // the ticket, which Issue returned too
	Text string // why, in one line: routecap_last_error of this very call
}

func (e *LostError) Error() string {
	return fmt.Sprintf("routecap_step_issue: step %d is lost: %s (%v)", e.Step, e.Text, Lost)
}

// Unwrap returns ErrLost.
func (e *LostError) Unwrap() error { return ErrLost }

// ErrLost is the status Lost, to compare errors of Issue with.
const ErrLost = Lost

// SkippedError is what Issue says of a step some of whose spans were skipped, where it was given no
// status to tell which: their rows are missing. The step is issued, and has its ticket. With a
// status for each span Issue returns no error, and Partial.
//
//	if errors.Is(err, routecap.ErrSkipped) { ... }
type SkippedError struct {
	Step     Step     // the ticket, which Issue returned too
	Statuses []Status // of each span: OK, ErrUnknownRequest or ErrNoMemory
	Text     string   // in one line
}

func (e *SkippedError) Error() string {
	skipped, first := 0, -1
	for i, status := range e.Statuses {
		if status == OK {
			continue
		}
		if skipped++; first < 0 {
			first = i
		}
	}
	if first < 0 {
		return fmt.Sprintf("routecap_step_issue: step %d: %s (%v)", e.Step, e.Text, Partial)
	}
	return fmt.Sprintf(
		"routecap_step_issue: step %d: %d of %d spans were skipped, first span %d (%v): %s",
		e.Step, skipped, len(e.Statuses), first, e.Statuses[first], e.Text,
	)
}

// Unwrap returns ErrSkipped.
func (e *SkippedError) Unwrap() error { return ErrSkipped }

// ErrSkipped is the status Partial, to compare errors of Issue with.
const ErrSkipped = Partial

// Result is the outcome of a call that can succeed in part: its status, and for Incomplete,
// NotCaptured, Partial and Lost one line that says more.
type Result struct {
	Status Status
	Text   string
}

// Complete reports whether the status is OK: nothing is missing, lost, pending or refused.
func (r Result) Complete() bool { return r.Status == OK }

// outcome tells success, in full or in part, from an error.
func (r Result) outcome(op string) (Result, error) {
	if r.Status < 0 {
		return r, &Error{op, r.Status, r.Text}
	}
	return r, nil
}
