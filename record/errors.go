package record

import (
	"errors"
	"fmt"
	"strconv"
)

// What can be wrong with a batch. Every error of this package wraps one.
var (
	// ErrTooShort: the bytes at hand end inside the batch, or its length field
	// leaves no room for a header.
	ErrTooShort = errors.New("batch too short")
	// ErrChecksum: the bytes are not those the checksum was made of.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrMagic: a format version other than 2. It is no damage: magic 0 and 1
	// are named in the text and readable by LegacyMessages.
	ErrMagic = errors.New("unsupported magic")
	// ErrInvalid: header and records disagree, or a record does not parse.
	ErrInvalid = errors.New("invalid batch")
	// ErrCodec: no such codec, or the compressed stream does not decode.
	ErrCodec = errors.New("undecodable records")
	// ErrTooLarge: more than the caller's bound, or than the format can hold.
	ErrTooLarge = errors.New("too large")
)

// An Error tells what was found where. It is formatted when printed only, so
// that a scan over damage stays cheap.
type Error struct {
	Kind   error  // one of the Err values
	What   string // the thing looked at: "record length"
	Pos    int    // byte inside the batch; with Plain inside the decompressed records
	Plain  bool
	Record int   // index of the record in its batch, -1 for the batch itself
	Found  int64 // meaningful if Rel is not empty
	Rel    string
	Want   int64 // meaningful if Rel is not "found"
	Err    error // the cause, if another package gave one
}

func (e *Error) Error() string {
	buf := append([]byte(e.Kind.Error()), ": "...)
	if e.Record >= 0 {
		buf = fmt.Appendf(buf, "record %d: ", e.Record)
	}
	buf = append(buf, e.What...)
	if e.Rel != "" {
		buf = append(append(buf, ' '), e.number(e.Found)...)
	}
	buf = fmt.Appendf(buf, " at byte %d", e.Pos)
	if e.Plain {
		buf = append(buf, " of the decompressed records"...)
	}
	if e.Rel != "" && e.Rel != found {
		buf = fmt.Appendf(buf, ", %s %s", e.Rel, e.number(e.Want))
	}
	if e.Err != nil {
		buf = fmt.Appendf(buf, ": %v", e.Err)
	}
	return string(buf)
}

func (e *Error) number(n int64) string {
	if e.Kind == ErrChecksum {
		return fmt.Sprintf("%08x", uint32(n))
	}
	return strconv.FormatInt(n, 10)
}

// Unwrap gives the kind and the cause, for errors.Is.
func (e *Error) Unwrap() []error {
	if e.Err != nil {
		return []error{e.Kind, e.Err}
	}
	return []error{e.Kind}
}

// Relations of Found to Want in an Error.
const (
	found   = "found" // there is nothing to compare with
	want    = "want"
	atLeast = "want at least"
	atMost  = "want at most"
)

// batchError is an Error about the header or the batch as a whole.
func batchError(kind error, what string, pos int, got int64, rel string, wanted int64) *Error {
	return &Error{Kind: kind, What: what, Pos: pos, Record: -1, Found: got, Rel: rel, Want: wanted}
}

func legacyMagicError(magic byte) *Error {
	what := "magic 0 message set"
	if magic == 1 {
		what = "magic 1 message set"
	}
	return &Error{Kind: ErrMagic, What: what, Pos: magicAt, Record: -1}
}
