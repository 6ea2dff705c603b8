// Command driver lets a test harness drive this client: it reads commands from standard input, one JSON object a line,
// and writes answers and events to standard output.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	lockkeeper "github.com/lockkeeper/lockkeeper/clients/go"
)

const hello = `{"driver":"go","version":"0.1.0","protocol":1,"schemes":["http","https"],` +
	`"modes":["exclusive","shared","permit"],"features":["election","all","subtree"]}`

type command struct {
	ID       *uint64  `json:"id"`
	Do       string   `json:"do"`
	URL      string   `json:"url"`
	TTL      int64    `json:"ttl_ms"`
	Label    string   `json:"label"`
	Hold     string   `json:"hold"`
	Lock     string   `json:"lock"`
	Mode     string   `json:"mode"`
	Permits  uint32   `json:"permits"`
	Wait     *int64   `json:"wait_ms"`
	Also     []string `json:"also"`
	Subtree  bool     `json:"subtree"`
	Acquire  uint64   `json:"acquire"`
	MS       int64    `json:"ms"`
	Election string   `json:"election"`
}

type object map[string]any

// failure is the error of a command, as the protocol names it.
type failure struct{ kind, text string }

func (f *failure) Error() string { return f.text }

func refused(format string, values ...any) error {
	return &failure{"refused", fmt.Sprintf(format, values...)}
}

type driver struct {
	mu      sync.Mutex
	out     *bufio.Writer
	client  *lockkeeper.Client
	holds   map[string]*lockkeeper.Guard // also those that were released
	over    map[string]bool              // whose release was called
	cancels map[uint64]context.CancelFunc
}

func main() {
	d := &driver{
		out: bufio.NewWriter(os.Stdout), holds: map[string]*lockkeeper.Guard{}, over: map[string]bool{},
		cancels: map[uint64]context.CancelFunc{},
	}
	fmt.Fprintln(d.out, hello)
	d.out.Flush()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		d.start(lines.Bytes())
	}
	if client := d.connected(); client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = client.Close(ctx)
	}
}

// start begins a command; the next one is read meanwhile.
func (d *driver) start(line []byte) {
	var c command
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&c)
	if err == nil && c.ID == nil {
		err = errors.New("`id` is missing")
	}
	if err != nil {
		// The answer names the command, if that can be read.
		var known struct {
			ID *uint64 `json:"id"`
		}
		_ = json.Unmarshal(line, &known)
		d.answer(known.ID, nil, refused("a command is to be a JSON object of known fields: %v", err))
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.mu.Lock()
	d.cancels[*c.ID] = cancel
	d.mu.Unlock()
	go func() {
		defer func() {
			cancel()
			d.mu.Lock()
			delete(d.cancels, *c.ID)
			d.mu.Unlock()
		}()
		ok, err := d.do(ctx, c)
		d.answer(c.ID, ok, err)
		if guard, isHeld := ok["guard"].(*lockkeeper.Guard); isHeld {
			d.watch(c.Hold, guard)
		}
	}()
}

func (d *driver) do(ctx context.Context, c command) (object, error) {
	switch c.Do {
	case "connect":
		return object{}, d.connect(ctx, c)
	case "acquire", "lead":
		return d.acquire(ctx, c)
	case "cancel":
		d.mu.Lock()
		cancel := d.cancels[c.Acquire]
		d.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return object{}, nil
	case "release":
		guard, err := d.guard(c.Hold)
		if err != nil {
			return nil, err
		}
		// A lock that no node releases is released by its lease's end.
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		d.mu.Lock()
		isAgain := d.over[c.Hold]
		d.over[c.Hold] = true
		d.mu.Unlock()
		err = guard.Release(ctx)
		if err == nil && isAgain {
			return object{"was": "released"}, nil
		}
		if errors.Is(err, lockkeeper.ErrLost) || errors.Is(err, lockkeeper.ErrClosed) {
			return object{"was": "lost"}, nil
		}
		return object{"was": "held"}, err
	case "check":
		guard, err := d.guard(c.Hold)
		if err == nil {
			err = guard.Check()
		}
		if err != nil {
			return nil, err
		}
		return object{"valid_ms": guard.ValidFor().Milliseconds()}, nil
	case "stall":
		return nil, refused("Go has no event loop or lock of the interpreter that a program could block")
	case "die":
		os.Exit(9)
	}
	return nil, refused("%q is no command of protocol 1", c.Do)
}

func (d *driver) connect(ctx context.Context, c command) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	client, err := lockkeeper.Connect(ctx, c.URL, lockkeeper.Options{
		TTL: time.Duration(c.TTL) * time.Millisecond, Label: c.Label,
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client != nil {
		return refused("there is a connection already")
	}
	d.client = client
	return nil
}

func (d *driver) connected() *lockkeeper.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.client
}

func (d *driver) acquire(ctx context.Context, c command) (object, error) {
	client := d.connected()
	if client == nil {
		return nil, refused("`connect` comes first")
	}
	var lock *lockkeeper.Lock
	switch {
	case c.Do == "lead":
		lock = client.Election(c.Election, "")
	case c.Mode == "exclusive":
		lock = client.Mutex(c.Lock)
	case c.Mode == "shared":
		lock = client.Shared(c.Lock)
	case c.Mode == "permit":
		lock = client.Semaphore(c.Lock, c.Permits)
	default:
		return nil, refused("the mode %q is none of exclusive, shared, permit", c.Mode)
	}
	if lock = lock.Also(c.Also...); c.Subtree {
		lock = lock.Subtree()
	}
	var guard *lockkeeper.Guard
	var err error
	switch {
	case c.Wait == nil:
		guard, err = lock.Acquire(ctx)
	case *c.Wait == 0:
		guard, err = lock.TryAcquire(ctx)
	default:
		guard, err = lock.AcquireWithin(ctx, time.Duration(*c.Wait)*time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.holds[c.Hold] = guard
	d.mu.Unlock()
	return object{"token": guard.Token(), "valid_ms": guard.ValidFor().Milliseconds(), "guard": guard}, nil
}

func (d *driver) guard(hold string) (*lockkeeper.Guard, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if guard := d.holds[hold]; guard != nil {
		return guard, nil
	}
	return nil, refused("there is no hold %q", hold)
}

// watch sends the event of a hold's loss.
func (d *driver) watch(hold string, guard *lockkeeper.Guard) {
	ctx, stop := guard.Context(context.Background())
	go func() {
		defer stop()
		<-ctx.Done()
		select {
		case <-guard.Lost():
			d.write(object{"event": "lost", "hold": hold})
		default: // released
		}
	}()
}

// answer sends the answer to a command; without an id, that to a line that has none.
func (d *driver) answer(id *uint64, ok object, err error) {
	if err == nil {
		shown := object{}
		for name, value := range ok {
			if name != "guard" {
				shown[name] = value
			}
		}
		d.write(object{"id": id, "ok": shown})
		return
	}
	d.write(object{"id": id, "error": object{"kind": kind(err), "text": err.Error()}})
}

func kind(err error) string {
	var f *failure
	switch {
	case errors.As(err, &f):
		return f.kind
	case errors.Is(err, lockkeeper.ErrBusy):
		return "busy"
	case errors.Is(err, lockkeeper.ErrTimedOut):
		return "timed-out"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, lockkeeper.ErrUnreachable):
		return "unreachable"
	case errors.Is(err, lockkeeper.ErrLost), errors.Is(err, lockkeeper.ErrClosed):
		return "lost"
	}
	return "refused"
}

func (d *driver) write(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out.Write(append(text, '\n'))
	d.out.Flush()
}
