//go:build !linux

package lockkeeper

import "time"

var started = time.Now()

// now reads Go's monotonic clock. Whether it counts the time for which the machine is suspended depends on the system
// (not on macOS): where it does not, a holder learns of a loss during a suspend with the first answer of the service
// after it, and only a fence protects the resource before that.
func now() time.Duration { return time.Since(started) }
