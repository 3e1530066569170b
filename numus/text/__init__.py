"""Text: byte-pair encoding, packing, masking, streaming from record files (docs/text.md)."""

# ruff: noqa: F403
from numus.text.bpe import *
from numus.text.packing import *
from numus.text.records import *
