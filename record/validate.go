package record

import "fmt"

// Validate checks all that can be said about the batch b by itself: what [Check]
// does, then that every record parses, that there are as many as the header
// says and nothing behind them, that their offsets rise within the batch, and
// that maxTimestamp is the largest with CreateTime. At most maxDecompressed bytes
// are decompressed, 0 being DefaultMaxDecompressed.
//
// Two things Kafka itself would store are invalid here: a plain batch whose
// offset deltas do not rise, as its in-place path does not look (log-format
// §2.8), and a wrong maxTimestamp, which misleads a time index.
func Validate(b Batch, maxDecompressed int) error {
	b, err := Check(b)
	if err != nil {
		return err
	}
	r := getReader(maxDecompressed)
	defer putReader(r)
	largest, err := r.scan(b, nil)
	if err != nil {
		return err
	}
	if b.TimestampType() == CreateTime && b.Count() > 0 && b.MaxTimestamp() != largest {
		return batchError(ErrInvalid, "max timestamp", maxTimestampAt, b.MaxTimestamp(), want, largest)
	}
	return nil
}

// scan reads all records of b, a batch that passed Check, and returns their
// largest timestamp, NoTimestamp at least. visit, if not nil, sees each with its
// own timestamp, that of the append notwithstanding.
func (r *Reader) scan(b Batch, visit func(i int, rec *Record)) (largest int64, err error) {
	last := int64(b.LastOffsetDelta())
	if int64(b.Count()) > last+1 {
		return 0, batchError(ErrInvalid, "records count", countAt, int64(b.Count()), atMost, last+1)
	}
	if err := r.Reset(b); err != nil {
		return 0, err
	}
	r.appendTime = false
	largest = NoTimestamp
	next := int64(0) // smallest delta that still rises
	for start := r.pos; r.Next(); start = r.pos {
		delta := r.rec.Offset - r.baseOffset
		if delta < next || delta > last {
			bad := &Error{Kind: ErrInvalid, What: "offset delta of the record", Pos: start, Plain: r.plain, Record: r.next - 1,
				Found: delta, Rel: atLeast, Want: next}
			if delta > last {
				bad.Rel, bad.Want = atMost, last
			}
			return 0, bad
		}
		next = delta + 1
		largest = max(largest, r.rec.Timestamp)
		if visit != nil {
			visit(r.next-1, &r.rec)
		}
	}
	return largest, r.err
}

// Kafka's codes for what ValidateClient and the producer table refuse (log-format
// §5.7).
const (
	CodeCorruptMessage         int16 = 2 // the client may send it again
	CodeMessageTooLarge        int16 = 10
	CodeRecordListTooLarge     int16 = 18 // does not fit into a segment; the log says so
	CodeInvalidTimestamp       int16 = 32
	CodeOutOfOrderSequence     int16 = 45
	CodeInvalidProducerEpoch   int16 = 47
	CodeInvalidTxnState        int16 = 48
	CodeCoordinatorFenced      int16 = 52
	CodeUnsupportedCompression int16 = 76
	CodeInvalidRecord          int16 = 87
)

// maxRecordErrors bounds the list in a ClientError: an answer need not be as
// long as the request.
const maxRecordErrors = 1000

// ClientError says why a client's batch is refused, whole as always.
type ClientError struct {
	Code    int16         // of the Kafka protocol
	Err     error         // what is wrong, or wrong first
	Records []RecordError // the records to blame, if single ones are; the first 1,000
}

// RecordError blames one record of a batch.
type RecordError struct {
	Index int // in the batch, from 0
	Err   error
}

func (e *ClientError) Error() string { return fmt.Sprintf("refuse batch (code %d): %v", e.Code, e.Err) }
func (e *ClientError) Unwrap() error { return e.Err }

// ClientRules is what a broker asks of a client's batch, beyond the format.
type ClientRules struct {
	Now           int64         // the broker's clock, ms since the epoch
	TimestampType TimestampType // of the topic
	MaxBefore     int64         // how far, in ms, a timestamp may lie before Now; 0 for any
	MaxAfter      int64         // and after it; with CreateTime only, both
	Compacted     bool          // keys must not be null
	MaxBatchSize  int           // bytes as sent; 0 for any
	NoZstd        bool          // the request is older than produce version 7
	Coordinator   bool          // the sender may write control batches

	// MaxDecompressed bounds the plain records in bytes. 0 is
	// DefaultMaxDecompressed.
	MaxDecompressed int
}

// ValidateClient checks the records field p of a produce request, version 3 or
// later, for one partition by the rules of log-format §2.8, in their order, as far
// as the batch alone can break them. It returns the batch in it, a view, and the
// timestamp to stamp with [Batch.SetMaxTimestamp] and rules.TimestampType before
// it is appended: the true largest, or rules.Now. A batch that is cut off behind
// the first is dropped, as in Kafka.
//
// Every error is a *ClientError. Where Kafka 4.4 answers −1, which clients do not
// expect, the code is 87: a codec that does not exist, a stream that does not
// decode, offset deltas of a compressed batch that are not 0 to n−1. Here those
// of a plain batch must be so too, and a producer id needs an epoch.
func ValidateClient(p []byte, rules *ClientRules) (b Batch, maxTimestamp int64, err error) {
	b, refused := clientBatch(p, rules)
	if refused != nil {
		return nil, 0, refused
	}
	r := getReader(rules.MaxDecompressed)
	defer putReader(r)

	untimed := b.TimestampType() == LogAppendTime &&
		(rules.TimestampType == LogAppendTime || b.MaxTimestamp() == NoTimestamp)
	var j judgement
	largest, err := r.scan(b, func(i int, rec *Record) { j.judge(rules, untimed, i, rec.Key, rec.Timestamp) })
	if err != nil {
		bad := err.(*Error) // scan gives no other
		code := CodeInvalidRecord
		if bad.Kind == ErrTooLarge {
			code = CodeMessageTooLarge
		}
		return nil, 0, &ClientError{Code: code, Err: bad}
	}
	if err := j.err(); err != nil {
		return nil, 0, err
	}
	if rules.TimestampType == LogAppendTime {
		largest = rules.Now
	}
	return b, largest, nil
}

// CheckRecords checks records that are about to be encoded by the rules that
// concern single ones: keys and timestamps, of which 0 stands for rules.Now. The
// error is a *ClientError.
func (rules *ClientRules) CheckRecords(recs []Record) error {
	var j judgement
	for i := range recs {
		j.judge(rules, false, i, recs[i].Key, stamp(recs[i].Timestamp, rules.Now))
	}
	return j.err()
}

// judgement blames records of a batch.
type judgement struct {
	badTime bool
	blamed  []RecordError
}

// judge looks at record i. untimed says that its batch must have no append time
// and has.
func (j *judgement) judge(rules *ClientRules, untimed bool, i int, key []byte, ts int64) {
	var bad *Error
	badTime := true
	switch {
	case rules.Compacted && key == nil:
		bad, badTime = &Error{What: "null key on a compacted topic"}, false
	case untimed:
		bad = &Error{What: "timestamp type LogAppendTime from a client", Pos: attributesAt}
	case rules.TimestampType == LogAppendTime || ts == NoTimestamp:
	case rules.MaxBefore > 0 && ts < rules.Now && uint64(rules.Now-ts) > uint64(rules.MaxBefore):
		bad = &Error{What: "timestamp", Found: ts, Rel: atLeast, Want: rules.Now - rules.MaxBefore}
	case rules.MaxAfter > 0 && ts > rules.Now && ts-rules.Now > rules.MaxAfter:
		bad = &Error{What: "timestamp", Found: ts, Rel: atMost, Want: rules.Now + rules.MaxAfter}
	}
	if bad == nil {
		return
	}
	j.badTime = j.badTime || badTime
	if len(j.blamed) < maxRecordErrors {
		bad.Kind, bad.Record = ErrInvalid, i
		j.blamed = append(j.blamed, RecordError{Index: i, Err: bad})
	}
}

func (j *judgement) err() error {
	if j.blamed == nil {
		return nil
	}
	code := CodeInvalidRecord
	if j.badTime {
		code = CodeInvalidTimestamp
	}
	return &ClientError{Code: code, Err: j.blamed[0].Err, Records: j.blamed}
}

// clientBatch checks what shows without the records.
func clientBatch(p []byte, rules *ClientRules) (Batch, *ClientError) {
	refuse := func(code int16, bad *Error) (Batch, *ClientError) {
		return nil, &ClientError{Code: code, Err: bad}
	}
	size, whole, bad := nextBatch(p, 0)
	switch {
	case bad != nil:
		return refuse(CodeCorruptMessage, bad)
	case !whole:
		return refuse(CodeInvalidRecord, batchError(ErrTooShort, "whole batches in the request", 0, 0, want, 1))
	case p[magicAt] < Magic:
		return refuse(CodeInvalidRecord, legacyMagicError(p[magicAt]))
	case size < HeaderSize:
		return refuse(CodeCorruptMessage, batchError(ErrTooShort, "batch size", lengthAt, int64(size), atLeast, HeaderSize))
	}
	b := Batch(p[:size:size])
	if b.Codec() == Zstd && rules.NoZstd {
		return refuse(CodeUnsupportedCompression, batchError(ErrCodec, "zstd in a produce request older than version 7", attributesAt, 0, "", 0))
	}
	if _, more, bad := nextBatch(p, size); bad != nil {
		return refuse(CodeCorruptMessage, bad)
	} else if more {
		return refuse(CodeInvalidRecord, batchError(ErrInvalid, "second batch in the request", size, 0, "", 0))
	}
	if b.BaseOffset() != 0 {
		return refuse(CodeInvalidRecord, batchError(ErrInvalid, "base offset", 0, b.BaseOffset(), want, 0))
	}
	if rules.MaxBatchSize > 0 && size > rules.MaxBatchSize {
		return refuse(CodeMessageTooLarge, batchError(ErrTooLarge, "batch size", lengthAt, int64(size), atMost, int64(rules.MaxBatchSize)))
	}
	if crc := b.ComputeCRC(); crc != b.CRC() {
		return refuse(CodeCorruptMessage, batchError(ErrChecksum, "crc-32c", crcAt, int64(b.CRC()), want, int64(crc)))
	}
	delta, count := int64(b.LastOffsetDelta()), int64(b.Count())
	switch {
	case delta < 0:
		return refuse(CodeInvalidRecord, batchError(ErrInvalid, "last offset delta", lastDeltaAt, delta, atLeast, 0))
	case count <= 0:
		return refuse(CodeInvalidRecord, batchError(ErrInvalid, "records count", countAt, count, atLeast, 1))
	case count != delta+1:
		return refuse(CodeInvalidRecord, batchError(ErrInvalid, "records count", countAt, count, want, delta+1))
	case b.IsControl() && !rules.Coordinator:
		return refuse(CodeInvalidRecord, batchError(ErrInvalid, "control batch from a client", attributesAt, 0, "", 0))
	case b.HasProducer() && b.ProducerEpoch() < 0:
		return refuse(CodeInvalidRecord, batchError(ErrInvalid, "producer epoch", producerEpochAt, int64(b.ProducerEpoch()), atLeast, 0))
	case b.HasProducer() && b.BaseSequence() < 0 && !b.IsControl():
		return refuse(CodeInvalidRecord, batchError(ErrInvalid, "base sequence", baseSequenceAt, int64(b.BaseSequence()), atLeast, 0))
	}
	return b, nil
}

// nextBatch looks for a batch at byte pos of a set of them in memory, where a rest
// that is too short for one is none, but one that cannot begin one is damage
// (log-format §2.3).
func nextBatch(p []byte, pos int) (size int, whole bool, bad *Error) {
	rest := p[pos:]
	size, ok := PeekSize(rest)
	switch {
	case len(rest) < prefixSize:
		return 0, false, nil
	case !ok:
		return 0, false, batchError(ErrTooShort, "batch length", pos+lengthAt, int64(size-prefixSize), atLeast, minLength)
	case len(rest) > magicAt && rest[magicAt] > Magic:
		return 0, false, batchError(ErrMagic, "magic", pos+magicAt, int64(int8(rest[magicAt])), want, Magic)
	}
	return size, size <= len(rest), nil
}
