package lockkeeper

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

// now reads CLOCK_BOOTTIME, which counts the time for which the machine is suspended. Go's own clock does not count it:
// after a suspend, a holder that used it would believe in a lease that has ended.
func now() time.Duration {
	var at syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0); errno != 0 {
		panic("CLOCK_BOOTTIME can't be read: " + errno.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(at.Nano())
}
