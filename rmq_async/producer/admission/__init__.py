"""Admission of calls: what a call holds (credits and a place in a FIFO line), and the waits for both."""

from .admission import Admission
from .call import Call, ReadReply, Result
from .credits import Credits, Epoch, finished
from .ordering import Line, Lines
