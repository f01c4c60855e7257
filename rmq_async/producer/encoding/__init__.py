"""Encoding of messages into requests, and decoding of responses into results and errors."""

from .frames import SEND, Frames
from .outgoing import AttemptWatch, BatchItem, CallWatch, Compressor, Encoder, Outgoing, Watched, notify_failed
from .response import SEND_OK, is_unclear, reply_error, stored, stored_batch, stored_message
