package mmap

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"
)

// A FaultError says that a page of a map could not be touched: the file was
// cut under it by somebody else, or the disk failed to deliver the page.
type FaultError struct {
	Pos int64 // byte of the map that was touched
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("touch mapped byte %d: the page is gone, file cut or disk failed", e.Pos)
}

// Guard turns a fault on a page of region into *err, a *FaultError, instead of
// the end of the process. It is made for one line at the top of a function that
// touches a map:
//
//	defer mmap.Guard(region, &err, debug.SetPanicOnFault(true))
//
// The last argument, evaluated where the defer stands, arms the calling
// goroutine and keeps its earlier setting, which Guard restores. Any other
// panic goes on, a fault outside region included. What the function was doing
// at the fault stays half done; locks it holds are its own business.
func Guard(region []byte, err *error, was bool) {
	debug.SetPanicOnFault(was)
	r := recover()
	if r == nil {
		return
	}
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	pos := fault.Addr() - uintptr(unsafe.Pointer(unsafe.SliceData(region)))
	if pos >= uintptr(len(region)) { // wraps for an address below region
		panic(r)
	}
	*err = &FaultError{Pos: int64(pos)}
}
