package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// dumper is the dump subcommand: it shows what files hold.
type dumper struct {
	*env
	records bool // record lines behind the batch lines
	decode  string
	reader  record.Reader

	sel        selection
	skip, left int64 // selected things to pass over, and to show

	dec *decoder // of the file at hand, nil if its records have no known form
	ctl decoder  // of control records
}

// decodeNames are the values of --decode.
func decodeNames() string {
	return strings.Join(append([]string{"auto", "none"}, slices.Sorted(maps.Keys(decodeTopics))...), ", ")
}

func dumpCommand(e *env, code *int) *cobra.Command {
	d := &dumper{env: e}
	c := &cobra.Command{
		Use:   "dump PATH...",
		Short: "Print what log, index and checkpoint files hold",
		Long: `Print what files hold: of a log its batches, with --records their records.
PATH is a file, a partition folder or a data folder. With any of the flags that
select something only logs are read of a folder.`,
		Args: cobra.MinimumNArgs(1),
	}
	parse := selectFlags(c, &d.sel)
	c.RunE = func(_ *cobra.Command, paths []string) error {
		if decodeTopics[d.decode] == "" && d.decode != "auto" && d.decode != "none" {
			return fmt.Errorf("--decode %s: want one of %s", d.decode, decodeNames())
		}
		if err := parse(); err != nil {
			return err
		}
		d.left = math.MaxInt64
		if d.sel.limit > 0 {
			d.left = d.sel.limit
		}
		if d.sel.hex {
			d.left = 1
		}
		d.reader.MaxBytes = e.maxPlain
		e.progress = newProgress(e.stderr, paths)
		for _, p := range dataFolders(paths) {
			d.path(p)
		}
		if d.sel.hex && d.left > 0 && d.out.err == nil && !d.unreadable {
			e.fail(errors.New("dump --hex: no batch is selected"))
		}
		e.progress.clear()
		*code = e.exitCode()
		return nil
	}
	c.Flags().BoolVar(&d.records, "records", false, "print records too")
	c.Flags().StringVar(&d.decode, "decode", "auto", "take records of Kafka's internal topics apart: auto (by folder), none, or as of one `topic`: "+
		strings.Join(slices.Sorted(maps.Keys(decodeTopics)), ", "))
	return c
}

// path dumps a file or directory that was asked for by name.
func (d *dumper) path(path string) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		d.fail(err)
	case !info.IsDir():
		d.file(path, stateBeside(path))
	default:
		d.dir(path, true)
	}
}

func (d *dumper) dir(path string, top bool) {
	entries, err := os.ReadDir(path)
	if err != nil {
		d.vanished(err)
		return
	}
	st := stateOf(path, entries)
	if d.sel.onlyLogs() {
		var logs []string
		for _, e := range entries {
			if kind, name, err := kindOf(e.Name()); err == nil && kind == kindLog && name.Stage == checkpoint.Live && !e.IsDir() {
				logs = append(logs, filepath.Join(path, e.Name()))
			}
		}
		if err := d.logs(logs, st); err != nil {
			d.vanished(err)
		}
	}
	for _, e := range entries {
		if d.out.err != nil || d.full() {
			return
		}
		sub := filepath.Join(path, e.Name())
		switch {
		case d.sel.onlyLogs() && (!e.IsDir() || !isPartitionDir(sub)):
		case !e.IsDir():
			d.file(sub, st)
		case top && isPartitionDir(sub):
			d.dir(sub, false)
		default:
			d.unknown(sub, "directory")
		}
	}
}

// vanished reports an error, unless it is that a file of a live folder is gone
// between its listing and its opening.
func (d *dumper) vanished(err error) {
	if !errors.Is(err, fs.ErrNotExist) {
		d.fail(err)
	}
}

func (d *dumper) file(path string, st folderState) {
	kind, name, err := kindOf(path)
	if err != nil {
		kind = kindUnknown
	}
	switch kind {
	case kindLog:
		if d.sel.onlyLogs() { // one that was asked for by name
			err = d.logs([]string{path}, st)
			break
		}
		err = d.log(path, kind, name.Base, 0, st.open(path))
	case kindMetadataSnapshot:
		err = d.log(path, kind, name.Base, 0, false)
	case kindOffsetIndex, kindTimeIndex:
		err = d.index(path, kind, name.Base)
	case kindTxnIndex:
		err = d.txnIndex(path, name.Base)
	case kindSnapshot:
		err = d.snapshot(path, name.Base)
	case kindUnknown:
		if !isWindow(path) {
			d.unknown(path, "unknown kind")
			return
		}
		err = d.window(path)
	default:
		err = d.small(path, kind)
	}
	if err != nil {
		d.vanished(err)
	}
}

// unknown notes something that the tool has no words for, by what it is.
func (d *dumper) unknown(path, what string) {
	o := d.out
	o.open("unknown")
	o.str("file", path)
	o.str("what", what)
	o.close()
}

// fault writes an error line and makes the exit code 1.
func (d *dumper) fault(path string, pos int64, r reason) { d.errorLine(path, pos, r) }

// newScanner opens a log file for a walk. live is whether its end may be
// being written just now.
func (e *env) newScanner(path string, base int64, live bool) (*scanner, *os.File, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, nil, err
	}
	s := &scanner{f: f, size: size, maxBatch: e.maxBatch, expect: base, progress: e.progress}
	if live {
		s.live = func() int64 {
			info, err := f.Stat()
			if err != nil {
				return 0
			}
			return info.Size()
		}
	}
	return s, f, nil
}

// log dumps a log from a batch that starts at from on, as far as it is
// selected.
func (d *dumper) log(path string, kind fileKind, base, from int64, live bool) error {
	s, f, err := d.newScanner(path, base, live)
	if err != nil {
		return err
	}
	defer f.Close()
	d.dec = decoderFor(d.decode, path, kind)
	if s.pos = from; from == 0 && d.sel.offsets.from > base && d.sel.position < 0 {
		s.pos = d.startFor(s, path, base, d.sel.offsets.from)
	}
	d.out.file(path, string(kind), s.size)
	for d.out.err == nil && !d.full() {
		sp, ok := s.next()
		if !ok || sp.kind == spanBatch && record.Batch(sp.data).BaseOffset() > d.sel.offsets.to ||
			d.sel.position >= 0 && sp.pos > d.sel.position {
			break
		}
		if d.sel.at(sp.pos, sp.size) {
			d.span(path, &sp, live)
		}
	}
	if s.err != nil {
		return fmt.Errorf("read %s at byte %d: %w", path, s.pos, s.err)
	}
	return nil
}

func (d *dumper) span(path string, sp *span, live bool) {
	o := d.out
	if sp.kind == spanZeros || sp.kind == spanTorn && live {
		o.open("tail")
		o.name(path)
		o.int("position", sp.pos)
		o.int("size", sp.size)
		if sp.kind == spanZeros {
			o.str("content", "zeros")
		} else {
			o.str("content", "unfinished batch")
			o.str("error", sp.err.Error())
		}
		o.close()
		return
	}
	text := ""
	if sp.err != nil {
		text = sp.err.Error()
	}
	switch {
	case len(sp.data) >= minHeader && sp.data[16] < record.Magic:
		d.legacy(path, sp, text)
	case len(sp.data) >= record.HeaderSize:
		d.batch(path, sp, record.Batch(sp.data), text)
	}
	if sp.err != nil {
		r := reasonOf(sp.err)
		d.fault(path, sp.pos+max(r.at, 0), r)
	}
}

// batch writes a batch and, if asked, its records, as far as they parse. Of a
// batch whose checksum is wrong they are shown for what they may be worth, and
// not counted.
func (d *dumper) batch(path string, sp *span, b record.Batch, text string) {
	whole := sp.err == nil
	if whole && !d.sel.batch(sp.pos, sp.size, b) {
		return
	}
	if d.sel.hex {
		// A damaged batch is shown by its position, or if nothing is selected.
		if !whole && (d.sel.position >= 0 || !d.sel.deep()) || whole && d.selected(sp, b) > 0 {
			d.left = 0
			d.out.batch(path, sp.pos, sp.size, b, text)
			d.annotate(path, sp.pos, b)
		}
		return
	}
	deep := d.sel.deep()
	if !d.records {
		if !whole || (!deep || d.selected(sp, b) > 0) && d.take() {
			d.out.batch(path, sp.pos, sp.size, b, text)
		}
		return
	}
	label := b.TimestampType().String()
	// The line of a batch comes before that of the first record shown. But a
	// batch without records is shown too.
	shown := !whole || !deep && d.skip == 0
	if shown {
		d.out.batch(path, sp.pos, sp.size, b, text)
	}
	d.reader.Reset(b)
	var rec record.Record
	r := &rec
	for d.out.err == nil && !d.full() && d.reader.Into(r) {
		if deep && !d.sel.record(r) || whole && !d.take() {
			continue
		}
		if !shown {
			d.out.batch(path, sp.pos, sp.size, b, text)
			shown = true
		}
		if b.IsControl() {
			d.controlRecord(path, sp.pos, r, label)
			continue
		}
		var dec decoded
		if d.dec != nil {
			dec.object, dec.whole = d.dec.record(r.Key, r.Value)
		}
		d.out.record(r, label, nil, dec)
	}
	if err := d.reader.Err(); err != nil {
		r := reasonOf(err)
		d.fault(path, sp.pos+max(r.at, 0), r)
	}
}

func (d *dumper) controlRecord(path string, pos int64, r *record.Record, label string) {
	c, err := record.ParseControl(r.Key, r.Value)
	var dec decoded
	if d.decode != "none" && err == nil {
		dec.object, dec.whole = d.ctl.control(c.Type, r.Value)
	}
	d.out.record(r, label, &c, dec)
	if err != nil {
		d.fault(path, pos, reasonOf(err))
	}
}

// legacy writes a message of magic 0 or 1, a compressed one with what is in it.
func (d *dumper) legacy(path string, sp *span, text string) {
	outer, err := record.ParseLegacy(sp.data)
	if err != nil {
		return // the caller writes the error that the scanner found
	}
	base, count := outer.Offset, int64(0)
	var inner error
	for m, err := range record.LegacyMessages(sp.data, d.maxPlain) {
		if err != nil {
			inner = err
			break
		}
		if count == 0 {
			base = m.Offset
		}
		count++
	}
	whole := sp.err == nil
	shown := !d.sel.onlyLogs() || !whole
	if !shown && !d.records {
		shown = d.selectedLegacy(sp) > 0 && d.take()
	}
	if shown {
		d.out.legacy(path, sp.pos, &outer, base, count, text)
	}
	if shown && d.sel.hex {
		(&annotator{o: d.out, path: path, from: sp.pos}).field(0, sp.data, "message", "")
		d.left = 0
		return
	}
	if d.records {
		for m, err := range record.LegacyMessages(sp.data, d.maxPlain) {
			if err != nil || d.full() {
				break
			}
			if !d.sel.legacy(sp.pos, sp.size, &m) || whole && !d.take() {
				continue
			}
			if !shown {
				d.out.legacy(path, sp.pos, &outer, base, count, text)
				shown = true
			}
			r := record.Record{Offset: m.Offset, Timestamp: m.Timestamp, Sequence: record.NoSequence, Key: m.Key, Value: m.Value}
			d.out.record(&r, legacyTimestampType(&m), nil, decoded{})
		}
	}
	if inner != nil && text == "" {
		r := reasonOf(inner)
		d.fault(path, sp.pos+max(r.at, 0), r)
	}
}

func (d *dumper) index(path string, kind fileKind, base int64) error {
	r, err := openEntries(path, base, kind == kindTimeIndex)
	if err != nil {
		return err
	}
	defer r.close()
	o := d.out
	o.file(path, string(kind), r.size)
	typ, a, b := "offsetIndexEntry", "offset", "position"
	if r.times {
		typ, a, b = "timeIndexEntry", "timestamp", "offset"
	}
	for i := int64(0); o.err == nil; i++ {
		e, ok := r.at(i)
		if !ok || !d.take() {
			break
		}
		if r.tailAt(i) {
			d.zeroTail(path, i*r.width(), r.len()*r.width())
			break
		}
		o.open(typ)
		o.name(path)
		o.int("entry", i)
		o.int(a, e.a)
		o.int(b, e.b)
		o.close()
	}
	if rest := r.size % r.width(); rest != 0 {
		d.fault(path, r.size-rest, reason{"length", -1, fmt.Sprintf("%d bytes of an entry", rest), fmt.Sprint(r.width())})
	}
	return r.err
}

func (d *dumper) zeroTail(path string, from, to int64) {
	o := d.out
	o.open("tail")
	o.name(path)
	o.int("position", from)
	o.int("size", to-from)
	o.str("content", "zeros")
	o.close()
}

func (d *dumper) txnIndex(path string, base int64) error {
	f, size, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	o := d.out
	o.file(path, string(kindTxnIndex), size)
	return eachTxn(f, path, base, func(i int64, t index.AbortedTxn, bad *index.CorruptError) bool {
		if bad != nil {
			d.fault(path, i*index.TxnEntrySize, reason{"entry", -1, bad.Found, bad.Want})
		}
		if bad == nil || t != (index.AbortedTxn{}) {
			o.open("txnIndexEntry")
			o.name(path)
			o.int("entry", i)
			o.int("producerId", t.PID)
			o.int("firstOffset", t.FirstOffset)
			o.int("lastOffset", t.LastOffset)
			o.int("lastStableOffset", t.LastStableOffset)
			o.close()
		}
		return o.err == nil
	})
}

// eachTxn reads a transaction index piece by piece. bad is what is wrong with
// entry i, and t is zero where it cannot be read.
func eachTxn(f file, path string, base int64, each func(i int64, t index.AbortedTxn, bad *index.CorruptError) bool) error {
	buf := make([]byte, 1024*index.TxnEntrySize)
	for from := int64(0); ; from += 1024 {
		n, err := readAt(f, buf, from*index.TxnEntrySize)
		if err != nil {
			return err
		}
		i := from
		for t, err := range index.ParseTxns(path, base, buf[:n]) {
			var bad *index.CorruptError
			if err != nil && !errors.As(err, &bad) {
				return err
			}
			if !each(i, t, bad) {
				return nil
			}
			base = max(base, t.LastOffset+1)
			i++
		}
		if n < len(buf) {
			return nil
		}
	}
}

// snapshotHeader is what the first bytes of a producer snapshot say
// (log-format §5.1), and whether they are true.
type snapshotHeader struct {
	version  int16
	entries  int32
	crc      uint32 // as stored
	computed uint32 // of the bytes there
	size     int64
	whole    bool // the size is that of so many entries
}

const snapshotHeaderSize, snapshotEntrySize = 10, 46

func (h snapshotHeader) ok() bool { return h.whole && h.version == 1 && h.crc == h.computed }

// maxStateFile bounds the files of producers, in bytes: 150 MiB are a million
// with five batches each.
const maxStateFile = 512 << 20

func readSnapshotHeader(path string) (snapshotHeader, error) {
	b, err := readBounded(path, maxStateFile)
	return parseSnapshotHeader(b), err
}

func parseSnapshotHeader(b []byte) (h snapshotHeader) {
	h.size = int64(len(b))
	if len(b) < snapshotHeaderSize {
		return h
	}
	h.version = int16(binary.BigEndian.Uint16(b))
	h.crc = binary.BigEndian.Uint32(b[2:])
	h.entries = int32(binary.BigEndian.Uint32(b[6:]))
	h.computed = crc32.Checksum(b[6:], crc32.MakeTable(crc32.Castagnoli))
	h.whole = int64(h.entries)*snapshotEntrySize+snapshotHeaderSize == h.size
	return h
}

func (d *dumper) snapshot(path string, offset int64) error {
	b, err := readBounded(path, maxStateFile)
	if err != nil {
		return err
	}
	h := parseSnapshotHeader(b)
	o := d.out
	o.file(path, string(kindSnapshot), h.size)
	o.open("producerSnapshot")
	o.name(path)
	o.int("offset", offset)
	o.int("size", h.size)
	o.int("version", int64(h.version))
	o.bool("valid", h.ok())
	o.int("entries", int64(h.entries))
	o.close()
	f, err := dedupe.ParseSnapshot(b)
	switch {
	case !h.ok():
		d.fault(path, 0, h.reason())
	case err != nil:
		d.fault(path, 0, reason{"format", -1, err.Error(), ""})
	default:
		d.producers(path, &f)
	}
	return nil
}

// isWindow reports whether a file is one of this module's own of producers.
func isWindow(path string) bool {
	digits, ok := strings.CutSuffix(filepath.Base(path), dedupe.Suffix)
	return ok && len(digits) == 20 && strings.Trim(digits, "0123456789") == ""
}

// window dumps the module's own file of producers.
func (d *dumper) window(path string) error {
	b, err := readBounded(path, maxStateFile)
	if err != nil {
		return err
	}
	f, err := dedupe.ParseWindow(b)
	o := d.out
	o.file(path, "producerWindow", int64(len(b)))
	o.open("producerWindow")
	o.name(path)
	o.int("offset", f.End)
	o.int("size", int64(len(b)))
	o.bool("valid", err == nil)
	o.int("entries", int64(f.Len()))
	o.str("logId", hex.EncodeToString(f.LogID[:]))
	o.close()
	if err != nil {
		d.fault(path, 0, reason{"format", -1, err.Error(), ""})
		return nil
	}
	d.producers(path, &f)
	return nil
}

// producers writes a line for each producer of a file.
func (d *dumper) producers(path string, f *dedupe.File) {
	o := d.out
	for p := range f.All() {
		if o.err != nil || !d.take() {
			return
		}
		o.open("producerEntry")
		o.name(path)
		o.int("producerId", p.ID)
		o.int("producerEpoch", int64(p.Epoch))
		o.int("coordinatorEpoch", int64(p.CoordinatorEpoch))
		o.int("currentTxnFirstOffset", p.TxnFirstOffset)
		o.int("lastTimestamp", p.LastTimestamp)
		o.key("window")
		o.b = append(o.b, '[')
		for i, b := range p.Batches[:p.N] {
			if i > 0 {
				o.b = append(o.b, ',')
			}
			if o.json {
				o.b = fmt.Appendf(o.b, `{"firstSequence":%d,"lastSequence":%d,"baseOffset":%d,"lastOffset":%d,"timestamp":%d}`,
					b.FirstSequence(), b.LastSequence, b.BaseOffset(), b.LastOffset, b.Timestamp)
				continue
			}
			o.b = append(o.b, "sequence="...)
			o.b = appendRange(o.b, int64(b.FirstSequence()), int64(b.LastSequence))
			o.b = append(o.b, " offsets="...)
			o.b = appendRange(o.b, b.BaseOffset(), b.LastOffset)
			o.b = fmt.Appendf(o.b, " timestamp=%d", b.Timestamp)
		}
		o.b = append(o.b, ']')
		o.close()
	}
}

func (h snapshotHeader) reason() reason {
	switch {
	case h.size < snapshotHeaderSize:
		return reason{"length", -1, fmt.Sprintf("%d bytes", h.size), "at least 10"}
	case h.version != 1:
		return reason{"version", -1, fmt.Sprint(h.version), "1"}
	case h.crc != h.computed:
		return reason{"crc", -1, fmt.Sprintf("%08x", h.crc), fmt.Sprintf("%08x", h.computed)}
	}
	return reason{"length", -1, fmt.Sprintf("%d bytes", h.size), fmt.Sprintf("%d for %d entries", snapshotHeaderSize+snapshotEntrySize*int64(h.entries), h.entries)}
}

// small dumps a text file.
func (d *dumper) small(path string, kind fileKind) error {
	b, err := readSmallFile(path)
	if err != nil {
		return err
	}
	o := d.out
	o.file(path, string(kind), int64(len(b)))
	switch kind {
	case kindEpochs:
		var epochs []checkpoint.Epoch
		if epochs, err = checkpoint.ParseEpochs(b); err != nil {
			break
		}
		for _, e := range epochs {
			o.open("leaderEpoch")
			o.name(path)
			o.int("epoch", int64(e.Epoch))
			o.int("startOffset", e.StartOffset)
			o.close()
		}
	case kindMeta:
		var m checkpoint.Meta
		if m, err = checkpoint.ParseMeta(b); err != nil {
			break
		}
		o.open("metaProperties")
		o.name(path)
		o.int("version", int64(m.Version))
		o.str("clusterId", m.ClusterID)
		o.int("nodeId", int64(m.NodeID))
		o.str("directoryId", m.DirectoryID)
		o.close()
	case kindPartition:
		var p checkpoint.Partition
		if p, err = checkpoint.ParsePartition(b); err != nil {
			break
		}
		o.open("partitionMetadata")
		o.name(path)
		o.int("version", int64(p.Version))
		o.str("topicId", p.TopicID.String())
		o.close()
	case kindCleanMarker:
		var epoch int64
		if epoch, err = checkpoint.ParseCleanMarker(b); err != nil {
			break
		}
		o.open("cleanShutdown")
		o.name(path)
		o.int("brokerEpoch", epoch)
		o.close()
	default:
		var offsets []checkpoint.Offset
		if offsets, err = checkpoint.ParseOffsets(b); err != nil {
			break
		}
		for _, e := range offsets {
			o.open("checkpoint")
			o.name(path)
			o.str("kind", string(kind))
			o.str("topic", e.Topic)
			o.int("partition", int64(e.Partition))
			o.int("offset", e.Offset)
			o.close()
		}
	}
	if err != nil {
		pos, r := textReason(b, err)
		d.fault(path, pos, r)
	}
	return nil
}

// textReason takes an error about the text file b apart: its line becomes a
// byte position.
func textReason(b []byte, err error) (pos int64, r reason) {
	var e *checkpoint.ParseError
	if !errors.As(err, &e) {
		return 0, reason{"format", -1, err.Error(), ""}
	}
	pos = linePos(b, e.Line)
	return pos, reason{"format", -1, fmt.Sprintf("%s in line %d", e.Found, e.Line), e.Want}
}

// linePos returns where a line of b starts, counted from 1.
func linePos(b []byte, line int) int64 {
	pos := 0
	for ; line > 1; line-- {
		i := bytes.IndexByte(b[pos:], '\n')
		if i < 0 {
			return int64(len(b))
		}
		pos += i + 1
	}
	return int64(pos)
}
