//go:build cgo

package routecap

/*
#include "log.h"
#include <stdlib.h>
*/
import "C"

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// The library calls on any thread and from within any call, so Go is not called from there (see
// lend.go): log.c writes each line into a pipe, and a goroutine reads it.
var logging struct {
	sync.Mutex
	stop func() // ends what SetLog began last
}

// SetLog gives the library's lines to a logger (routecap_set_log), as many levels as it is enabled
// for now. Without one, and with nil, ROUTECAP_LOG in the environment says which lines go to
// stderr.
//
// Lines arrive in order, a little later than they were said. What a slow handler has no time for is
// left out; the next record then has the attribute left_out, with their number. When SetLog
// returns, the logger before it has got all lines that were its own.
func SetLog(logger *slog.Logger) error {
	logging.Lock()
	defer logging.Unlock()
	stop := logging.stop
	if logger == nil {
		if _, err := routecap_set_log(nil, 0).outcome("routecap_set_log"); err != nil {
			return err
		}
		logging.stop = nil
	} else if err := startLog(logger); err != nil {
		return err
	}
	if stop != nil {
		stop()
	}
	return nil
}

func startLog(logger *slog.Logger) error {
	level := int32(logOff)
	for l, at := range slogLevels {
		if logger.Enabled(context.Background(), at) {
			level = max(level, int32(l))
		}
	}
	from, to, err := os.Pipe() // which do not block
	if err != nil {
		return err
	}
	pipe := (*C.routecap_go_pipe)(C.calloc(1, C.sizeof_routecap_go_pipe))
	descriptor, err := to.SyscallConn()
	if err == nil {
		err = descriptor.Control(func(fd uintptr) { pipe.descriptor = C.int(fd) })
	}
	if err == nil {
		_, err = routecap_set_log(unsafe.Pointer(pipe), level).outcome("routecap_set_log")
	}
	if err != nil {
		C.free(unsafe.Pointer(pipe))
		return errors.Join(err, from.Close(), to.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		readLog(logger, from)
	}()
	logging.stop = func() { // the library uses the pipe no more
		_ = to.Close()
		<-done
		_ = from.Close()
		C.free(unsafe.Pointer(pipe))
	}
	return nil
}

// slogLevels are those of slog, by the library's.
var slogLevels = map[int]slog.Level{
	logError: slog.LevelError, logWarning: slog.LevelWarn, logInfo: slog.LevelInfo, logDebug: slog.LevelDebug,
}

func readLog(logger *slog.Logger, from *os.File) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		var level, leftOut int
		head, text, _ := strings.Cut(lines.Text(), " ")
		count, text, _ := strings.Cut(text, " ")
		if _, err := fmt.Sscan(head+" "+count, &level, &leftOut); err != nil {
			continue
		}
		var more []slog.Attr
		if leftOut > 0 {
			more = append(more, slog.Int("left_out", leftOut))
		}
		logger.LogAttrs(context.Background(), slogLevels[level], text, more...)
	}
}
