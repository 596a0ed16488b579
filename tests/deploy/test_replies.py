"""Replies that come piece by piece, from a SuperLink that has only some of the pieces."""

import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)

from fedsys._flwr_private import set_task_identity, stamp
from fedsys.clock import WallClock
from fedsys.deploy._replies import MISSES, Replies


@dataclass
class Told:
    """A reply as the SuperLink knows it."""

    message: object
    tree: object
    objects: dict
    has: set
    gone: bool = False


class SuperLink:
    """Answers as Flower's runtime API does; counts what it is asked."""

    def __init__(self):
        self.told = {}
        self.confirmed = []
        self.asked = 0

    def add(self, question_id, reply):
        stamp(reply, run_id=1, src_node_id=7, message_id="")
        reply.metadata.__dict__["_reply_to_message_id"] = question_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            objects = {k: v.deflate() for k, v in get_all_nested_objects(reply).items()}
            tree = get_object_tree(reply)
        head = message_to_proto(remove_content_from_message(reply))
        self.told[question_id] = Told(head, tree, objects, set())
        return self.told[question_id]

    def PullMessages(self, request):
        found = [self.told[i] for i in request.message_ids if i in self.told]
        for one in found:
            assert one.message is not None, "told twice"
        answer = PullAppMessagesResponse(
            messages_list=[one.message for one in found],
            message_object_trees=[one.tree for one in found],
        )
        for one in found:
            one.message = None
        return answer

    def PullObject(self, request):
        self.asked += 1
        for one in self.told.values():
            if request.object_id in one.objects and not one.gone:
                there = request.object_id in one.has
                content = one.objects[request.object_id] if there else b""
                return PullObjectResponse(
                    object_found=True, object_available=there, object_content=content
                )
        return PullObjectResponse(object_found=False)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def link():
    set_task_identity(1)
    return SuperLink()


@pytest.fixture
def replies(link, tmp_path):
    grid = SimpleNamespace(
        _runtime_client=link, node=Node(node_id=1), _run=SimpleNamespace(run_id=1)
    )
    made = Replies(grid, WallClock(), tmp_path)
    made.begin()
    return made


def reply(pieces):
    question = Message(RecordDict(), 7, "train")
    content = RecordDict({f"r{i}": ConfigRecord({"r": data}) for i, data in enumerate(pieces)})
    return Message(content, reply_to=question)


def test_a_reply_that_is_under_way_keeps_nobody_waiting(link, replies):
    slow = link.add("slow", reply([b"a" * 50, b"b" * 60]))
    slow.has = set(list(slow.objects)[:1])
    quick = link.add("quick", reply([b"c" * 70]))
    quick.has = set(quick.objects)

    first = replies.look({"slow", "quick"})
    again = replies.look({"slow"})
    slow.has = set(slow.objects)
    last = replies.look({"slow"})

    assert [one.metadata.reply_to_message_id for one in first] == ["quick"]
    assert again == []
    assert [one.metadata.reply_to_message_id for one in last] == ["slow"]
    until_s = time.monotonic() + 5  # nobody waits for it
    while len(link.confirmed) < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert len(link.confirmed) == 2


def test_what_came_is_what_was_sent_however_often_it_is_looked_at(link, replies):
    told = link.add("q", reply([b"a" * 5000, b"b" * 60, b"a" * 5000]))
    told.has = set(told.objects)

    (found,) = replies.look({"q"})

    for _ in range(2):
        assert [dict(found.content[f"r{i}"])["r"] for i in range(3)] == [
            b"a" * 5000,
            b"b" * 60,
            b"a" * 5000,
        ]
    assert found.metadata.src_node_id == 7
    assert found.traffic == (len(told.objects), sum(map(len, told.objects.values())))


def test_replies_of_the_last_round_can_still_be_read_when_the_next_begins(link, replies, tmp_path):
    told = link.add("q", reply([b"a" * 5000]))
    told.has = set(told.objects)
    (found,) = replies.look({"q"})

    replies.begin()
    other = link.add("p", reply([b"b" * 5000]))
    other.has = set(other.objects)
    replies.look({"p"})

    assert dict(found.content["r0"])["r"] == b"a" * 5000
    assert list(tmp_path.iterdir()) == []  # files without a name: nothing stays behind


def test_a_piece_is_asked_for_once(link, replies):
    told = link.add("q", reply([bytes([i]) * 100 for i in range(20)]))
    for count in range(len(told.objects) + 1):
        told.has = set(list(told.objects)[:count])
        replies.look({"q"})

    assert link.asked <= 2 * len(told.objects) + 1


def test_an_update_that_broke_off_is_an_error_that_says_how_much_came(link, replies):
    told = link.add("q", reply([b"a" * 50, b"b" * 60]))
    told.has = set(list(told.objects)[:2])
    replies.look({"q"})
    told.gone = True

    (found,) = replies.look({"q"})

    assert found.has_error()
    assert f"2 of {len(told.objects)} pieces came" in found.error.reason
    assert found.metadata.reply_to_message_id == "q"


def test_an_error_of_a_device_comes_as_it_is(link, replies):
    question = Message(RecordDict(), 7, "train")
    told = link.add("q", Message(Error(2, "out of memory"), reply_to=question))
    told.has = set(told.objects)

    (found,) = replies.look({"q"})

    assert found.error.reason == "out of memory"


def test_a_look_at_hundreds_of_replies_is_short_and_none_is_forgotten(link, replies):
    told = [link.add(f"q{i}", reply([bytes([i]) * 50])) for i in range(100)]
    replies.look({f"q{i}" for i in range(100)})

    assert link.asked == MISSES
    for one in told:
        one.has = set(one.objects)
    assert len(replies.look(set())) == 100
