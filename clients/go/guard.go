package lockkeeper

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Slot is a permit that is held.
type Slot struct {
	// Slot is its number, from 0.
	Slot uint32 `json:"slot"`
	// Permits is the number of permits in force.
	Permits uint32 `json:"permits"`
}

// Guard is a lock that is held: until its release, or its loss.
type Guard struct {
	session *session
	number  uint64
	token   uint64
	slots   []Slot
	lost    chan struct{}
	// released is closed by the first Release.
	released chan struct{}

	mu         sync.Mutex
	err        error // why it is lost
	isReleased bool
}

// Token is the fencing token, which rises with every grant (1 to 2^53 - 1). Send it with every effect; the resource has
// to refuse tokens that are older than the newest it has seen.
func (g *Guard) Token() uint64 { return g.token }

// Slots are the permits that it holds of semaphores, one for each name in byte order.
func (g *Guard) Slots() []Slot { return g.slots }

// ValidFor is the time for which the lock is certainly held, by the client's own clock; 0 if it is lost. The client
// extends it as long as the service answers.
func (g *Guard) ValidFor() time.Duration {
	left := g.session.validFor()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil || g.isReleased {
		return 0
	}
	return left
}

// Check returns an ErrLost if the lock is not certainly held any more. Call it before each effect; only a fence also
// protects from what happens after the check.
func (g *Guard) Check() error {
	if g.ValidFor() > 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.err != nil:
		return g.err
	case g.isReleased:
		return fmt.Errorf("%w: it was released", ErrLost)
	}
	return fmt.Errorf("%w: its lease has ended", ErrLost)
}

// Lost is closed when the lock is lost, before the service can grant it to another; not after its release.
func (g *Guard) Lost() <-chan struct{} { return g.lost }

// Context returns a context that is cancelled when the lock is lost or released, and when parent is. Check says why. Call
// the function when the work is over.
func (g *Guard) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		defer cancel()
		select {
		case <-g.lost:
		case <-g.released:
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Release releases the lock. It returns an ErrLost if it had been lost before, and an ErrUnreachable if no node answers
// before the deadline of ctx, or within 2 s if ctx has ended already. After an error the client goes on trying, and the
// lock is released by the end of the session at the latest.
func (g *Guard) Release(ctx context.Context) error {
	g.mu.Lock()
	if g.isReleased {
		g.mu.Unlock()
		return nil
	}
	g.isReleased = true
	close(g.released)
	lost := g.err
	g.mu.Unlock()
	ctx, cancel := lasting(ctx)
	defer cancel()
	g.session.setOver(g.number)
	end, err := g.session.finish(ctx, g.number)
	if err != nil {
		g.session.abandon(g.number)
	}
	switch {
	case lost != nil:
		return lost
	case err == nil && end != "released" && end != "gone":
		return fmt.Errorf("%w: it had ended (%s)", ErrLost, end)
	}
	return err
}

// lose closes Lost, unless the lock was released or lost before.
func (g *Guard) lose(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil && !g.isReleased {
		g.err = err
		close(g.lost)
	}
}
