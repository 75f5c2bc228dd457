#include "textflag.h"

// func fetchLines(p *byte, n int)
TEXT ·fetchLines(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), BX
	ADDQ AX, BX
	JMP  check

next:
	PREFETCHT0 (AX)
	ADDQ       $64, AX

check:
	CMPQ AX, BX
	JLT  next
	RET
