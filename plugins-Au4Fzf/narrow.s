
.globl _start
_start:
  pushl $text
  call puts
  pushl $6
  call exit
.section .rodata
text: .string "32 bits"
.section .note.GNU-stack, "", @progbits
