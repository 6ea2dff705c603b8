// Package fence checks fencing tokens in a transaction of PostgreSQL, by any driver of database/sql. The rule is in the
// SQL functions of the schema lockkeeper_fence, which a database administrator applies once: fence.sql of docs/fencing.md.
package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// The refusals of the fence. Errors wrap them: compare with errors.Is.
var (
	// ErrStale: the resource has seen a newer token. Stop, and write nothing.
	ErrStale = errors.New("a newer holder has entered the fence")
	// ErrRepeated: Once has let this token through before.
	ErrRepeated = errors.New("the token was let through before")
	// ErrNotFenced: the call is wrong, or the schema is missing or may not be used.
	ErrNotFenced = errors.New("the fence can't check")
)

// Hold is how the lock is held.
type Hold struct {
	mode string
	slot sql.NullInt32
}

// How a Mutex and a Shared lock are held.
var (
	Exclusive = Hold{mode: "exclusive"}
	Shared    = Hold{mode: "shared"}
)

// Permit is how a permit of a semaphore is held: with its slot, from Guard.Slots.
func Permit(slot uint32) Hold {
	return Hold{mode: "permit", slot: sql.NullInt32{Int32: int32(slot), Valid: true}}
}

// Tx is a transaction: *sql.Tx, or a *sql.Conn in one. A pool (*sql.DB) is refused: the check would be a transaction of
// its own.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Enter checks the token, and marks the resource: older tokens are refused from then on. It comes first in the
// transaction, before anything is read.
func Enter(ctx context.Context, tx Tx, resource string, token uint64, hold Hold) error {
	return check(ctx, tx, "enter", resource, token, hold)
}

// Write checks the token in a further transaction that writes, after an Enter in an earlier one.
func Write(ctx context.Context, tx Tx, resource string, token uint64, hold Hold) error {
	return check(ctx, tx, "check_write", resource, token, hold)
}

// Once lets a token through once: ErrRepeated.
func Once(ctx context.Context, tx Tx, resource string, token uint64, hold Hold) error {
	return check(ctx, tx, "check_once", resource, token, hold)
}

func check(ctx context.Context, tx Tx, function, resource string, token uint64, hold Hold) error {
	if _, isPool := tx.(interface{ SetMaxOpenConns(int) }); isPool {
		return fmt.Errorf("%w: %T is no transaction; begin one (BeginTx), and pass that", ErrNotFenced, tx)
	}
	query := "SELECT lockkeeper_fence." + function + "($1::text, $2::text, $3::int, $4::bigint)"
	_, err := tx.ExecContext(ctx, query, resource, hold.mode, hold.slot, int64(token))
	// lib/pq and pgx have this method.
	var refusal interface{ SQLState() string }
	if !errors.As(err, &refusal) {
		return err
	}
	switch state := refusal.SQLState(); {
	case state == "LK001":
		return fmt.Errorf("%w: %v", ErrStale, err)
	case state == "LK002":
		return fmt.Errorf("%w: %v", ErrRepeated, err)
	case state == "LK003" || state == "LK004" || state == "LK005":
		return fmt.Errorf("%w: %v", ErrNotFenced, err)
	case (state == "3F000" || state == "42883" || state == "42501") && strings.Contains(err.Error(), "lockkeeper_fence"):
		return fmt.Errorf("%w: %v; apply the fence's schema, and the grants for the application's role", ErrNotFenced, err)
	}
	return err
}
