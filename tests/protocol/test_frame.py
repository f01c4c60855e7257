"""FrameDecoder and encode_frame on well-formed streams; broken ones are in test_hostile_bytes.py."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, cuts, serialize_types

from rmq_protocol.constants import MAX_FRAME_SIZE, SerializeType
from rmq_protocol.errors import FrameTooLargeError, LocalProtocolError, RemoteProtocolError
from rmq_protocol.frame import CutFrame, Frame, FrameDecoder, encode_frame


def join(*frames: Frame) -> bytes:
    return b"".join(
        part for frame in frames for part in encode_frame(SerializeType(frame.serialize_type), frame.header, frame.body)
    )


def test_layout_is_length_then_type_and_header_length_then_header_then_body() -> None:
    assert join(Frame(1, b"hh", b"body")) == bytes.fromhex("0000000a 01000002") + b"hhbody"


def test_frames_come_out_in_arrival_order_and_the_rest_is_kept() -> None:
    frames = [Frame(0, b"a", b""), Frame(1, b"bb", b"x" * 300), Frame(0, b"", b"y")]
    data = join(*frames)
    decoder = FrameDecoder()
    assert decoder.feed(data + data[:6]) == frames
    assert decoder.pending == 6
    assert decoder.feed(data[6:]) == frames
    assert decoder.pending == 0


@given(st.lists(st.builds(Frame, serialize_types, st.binary(max_size=30), st.binary(max_size=60)), max_size=5), st.data())
@FUZZ
def test_no_cut_of_the_stream_changes_the_frames(frames: list[Frame], draw: st.DataObject) -> None:
    decoder = FrameDecoder()
    found = [frame for piece in draw.draw(cuts(join(*frames))) for frame in decoder.feed(piece)]
    assert found == frames
    assert decoder.pending == 0
    assert decoder.error is None


def test_parts_of_a_large_body_are_not_joined() -> None:
    body = bytes(1 << 20)
    head, same = encode_frame(SerializeType.JSON, b"{}", body)
    assert same is body
    assert len(head) == 10


def test_an_empty_body_adds_no_part() -> None:
    assert encode_frame(SerializeType.JSON, b"{}") == [bytes.fromhex("00000006 00000002") + b"{}"]


def test_the_limit_counts_the_length_prefix_and_is_inclusive() -> None:
    frame = join(Frame(0, b"{}", b"x" * 90))
    assert len(frame) == 100
    assert len(FrameDecoder(100).feed(frame)) == 1
    with pytest.raises(RemoteProtocolError, match="frame length 96 is above the limit of 95"):
        FrameDecoder(99).feed(frame)


LARGE = Frame(1, b"head", b"x" * 500)


@given(st.lists(st.sampled_from([Frame(0, b"{}", b"small"), Frame(0, b"{}", b""), LARGE]), max_size=6), st.data())
@FUZZ
def test_large_frames_are_cut_to_their_headers_and_the_others_come_whole(frames: list[Frame], draw: st.DataObject) -> None:
    decoder, found, most = FrameDecoder(100, drop_up_to=1000), [], 0
    for piece in draw.draw(cuts(join(*frames))):
        found += decoder.cut(piece)
        most = max(most, decoder.pending)
    expected = [CutFrame(1, b"head", 512) if frame is LARGE else frame if frame.body else frame.header for frame in frames]
    assert found == expected
    assert decoder.pending == 0
    assert most <= 100


def test_a_frame_that_is_too_large_to_be_dropped_is_refused_by_its_first_bytes() -> None:
    decoder = FrameDecoder(100, drop_up_to=511)
    with pytest.raises(FrameTooLargeError, match="frame length 508 is above the limit of 96") as caught:
        decoder.feed(join(LARGE)[:4])
    assert (caught.value.size, caught.value.limit) == (512, 100)


def test_a_large_frame_whose_header_alone_is_too_large_is_refused() -> None:
    with pytest.raises(FrameTooLargeError, match="above the limit"):
        FrameDecoder(100, drop_up_to=1000).feed(join(Frame(0, bytes(93), bytes(500)))[:8])


def test_the_largest_frame_of_the_protocol_is_sent_and_one_byte_more_is_not() -> None:
    body = bytes(MAX_FRAME_SIZE - 8 - 2)
    head, _ = encode_frame(SerializeType.JSON, b"{}", body)
    assert int.from_bytes(head[:4]) == 16777212
    with pytest.raises(LocalProtocolError, match="16777217 bytes is above the limit of 16777216"):
        encode_frame(SerializeType.JSON, b"{}", body + b"x")


def test_a_header_above_24_bits_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="header of 16777216 bytes"):
        encode_frame(SerializeType.JSON, bytes(1 << 24))


def test_a_limit_below_an_empty_frame_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="max_frame_size must be at least 8"):
        FrameDecoder(7)


def test_a_frame_that_dribbles_in_costs_linear_time() -> None:
    data = join(Frame(0, b"{}", bytes(400_000)))
    decoder = FrameDecoder()
    began = time.process_time()
    found = [frame for at in range(0, len(data), 2) for frame in decoder.feed(data[at : at + 2])]
    assert len(found) == 1
    assert time.process_time() - began < 2  # 0.1 s here; copying what is pending each time would take 20 s


def test_a_json_frame_without_a_body_is_cut_to_its_header() -> None:
    """``cut`` gives what ``feed`` gives, but such a frame as the bytes of its header."""
    plain = b"".join(encode_frame(SerializeType.JSON, b"{}"))
    binary = b"".join(encode_frame(SerializeType.ROCKETMQ, b"head"))
    full = b"".join(encode_frame(SerializeType.JSON, b"{1}", b"body"))
    stream = plain + binary + full + plain
    assert FrameDecoder().cut(stream) == [b"{}", Frame(1, b"head", b""), Frame(0, b"{1}", b"body"), b"{}"]
    assert FrameDecoder().feed(stream) == [
        Frame(0, b"{}", b""),
        Frame(1, b"head", b""),
        Frame(0, b"{1}", b"body"),
        Frame(0, b"{}", b""),
    ]


def test_a_bytearray_gives_the_same_frames_as_bytes() -> None:
    frames = [Frame(0, b"{}", b""), Frame(1, b"head", b""), Frame(0, b"{1}", b"body")]
    data = bytearray(join(*frames))
    decoder = FrameDecoder()
    found = decoder.feed(data) + decoder.feed(data[:9]) + decoder.feed(data[9:])
    data.clear()
    assert found == frames * 2
    assert {type(part) for frame in found for part in (frame.header, frame.body)} == {bytes}
