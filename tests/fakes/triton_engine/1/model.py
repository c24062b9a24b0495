"""A stand-in for `tensorrt_llm`: known tokens, known timing, faults on demand, exact counters.

Model parameters: tokenizer_dir, vocab_size (of random answers) and, under the key `script`, a JSON object with the
fields of `script.Script`, and `role` (draft). A prompt that begins with a JSON object overrides them for its request.
A draft from outside is verified: what stands and one token more are the answer.
"""

import json
import os
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import triton_python_backend_utils as pb_utils
from script import Drafts, Script, accepted_run, planned_ids, script_of_prompt, with_settings
from tokenizers import Tokenizer

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
COUNTERS = ("requests", "steps", "tokens", "drafted", "accepted", "stops")


@dataclass
class Sequence:
    """One running answer."""

    request_id: str
    sender: object
    script: Script
    ids: list
    drafts: Drafts
    due: float
    sent: int = 0
    drafted: int = 0
    accepted: int = 0
    whole: bool = False
    stopped: bool = False
    steps: int = field(default=0)


def scalar(request, name, default):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0].item()


class TritonPythonModel:
    def initialize(self, args):
        block = json.loads(args["model_config"]).get("parameters", {})
        values = {key: entry["string_value"] for key, entry in block.items()}
        self._tokenizer = Tokenizer.from_file(values["tokenizer_dir"] + "/tokenizer.json")
        self._vocabulary = int(values.get("vocab_size") or self._tokenizer.get_vocab_size())
        self._default = with_settings(Script(), json.loads(values.get("script") or "{}"))
        self._role = values.get("role", "")
        self._families = []
        self._count = {
            name: self._metric(f"fake_engine_{name}_total", pb_utils.MetricFamily.COUNTER) for name in COUNTERS
        }
        self._active_gauge = self._metric("fake_engine_active", pb_utils.MetricFamily.GAUGE)
        self._active: list[Sequence] = []
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _metric(self, name, kind):
        family = pb_utils.MetricFamily(name=name, description=name, kind=kind)
        self._families.append(family)
        return family.Metric(labels={})

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._accept(request, sender)
            except Exception as error:
                sender.send(pb_utils.InferenceResponse([], pb_utils.TritonError(str(error))), flags=FINAL)

    def finalize(self):
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        for sequence in self._active:
            sequence.sender.send(flags=FINAL)
        del self._count, self._active_gauge, self._families  # left to the interpreter's end they crash it

    def _accept(self, request, sender):
        if scalar(request, "stop", False):
            with self._wake:
                for sequence in self._active:
                    if sequence.request_id == request.request_id() and sequence.script.fault != "ignore_stop":
                        sequence.stopped, sequence.due = True, 0.0
                self._wake.notify()
            self._count["stops"].increment(1)
            sender.send(flags=FINAL)
            return
        length = int(scalar(request, "input_lengths", 0))
        prompt = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy().reshape(-1)[:length].tolist()
        text = self._tokenizer.decode(prompt, skip_special_tokens=False)
        script, own = script_of_prompt(text, self._default, self._role)
        asked = json.loads(request.parameters() or "{}").get("num_draft_tokens", script.draft_len)
        if script.fault == "crash":
            os._exit(1)
        if script.fault == "error_first":
            raise ValueError("the scripted engine refuses")
        max_tokens = int(scalar(request, "request_output_len", 0))
        encode = lambda text: self._tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731
        begin = encode(own) if own != text else prompt
        done = len(prompt) - len(begin)
        ids = planned_ids(script, begin, done + max_tokens, encode, self._vocabulary)[done:]
        end_id = int(scalar(request, "end_id", -1))
        if len(ids) < max_tokens and end_id >= 0 and script.fault not in ("end_early", "silent_end"):
            ids.append(end_id)
        draft = pb_utils.get_input_tensor_by_name(request, "draft_input_ids")
        if draft is not None:
            ids = ids[: accepted_run(draft.as_numpy().reshape(-1).tolist(), ids) + 1]
        if script.fault == "no_progress" and done:
            ids = []
        drafts = Drafts(script, min(asked, script.draft_len))
        sequence = Sequence(request.request_id(), sender, script, ids, drafts, time.monotonic() + script.step_ms / 1e3)
        sequence.whole = not scalar(request, "streaming", False)
        self._count["requests"].increment(1)
        with self._wake:
            self._active.append(sequence)
            self._active_gauge.set(len(self._active))
            self._wake.notify()

    def _run(self):
        while True:
            with self._wake:
                if self._closed:
                    return
                ready = [s for s in self._active if s.due <= time.monotonic()]
                if not ready:
                    rest = min((s.due for s in self._active), default=time.monotonic() + 3600) - time.monotonic()
                    self._wake.wait(max(min(rest, 3600), 0))
                    continue
            over = [sequence for sequence in ready if self._step(sequence)]
            if over:
                self._count_ended(over)
                with self._wake:
                    self._active = [sequence for sequence in self._active if sequence not in over]
                    self._active_gauge.set(len(self._active))

    def _count_ended(self, over):
        """Each update is a round trip to the server, so they come once a sequence."""
        for name, values in (
            ("steps", [s.steps for s in over]),
            ("tokens", [s.sent for s in over]),
            ("drafted", [s.drafted for s in over]),
            ("accepted", [s.accepted for s in over]),
        ):
            self._count[name].increment(sum(values))

    def _step(self, sequence):
        """One step of one sequence; True when it is over."""
        fault, sender = sequence.script.fault, sequence.sender
        if sequence.stopped:
            sender.send(flags=FINAL)
            return True
        if fault and sequence.sent >= sequence.script.fault_after:
            if fault == "stall":
                sequence.due = time.monotonic() + 3600
                return False
            if fault == "end_early":
                sender.send(flags=FINAL)
                return True
            if fault.startswith("error_mid"):
                error = pb_utils.InferenceResponse([], pb_utils.TritonError("the scripted engine fails"))
                sender.send(error, flags=0 if fault == "error_mid_then_end" else FINAL)
                if fault == "error_mid_then_end":
                    sender.send(flags=FINAL)
                return True
        left = len(sequence.ids) - sequence.sent
        drafted, accepted = sequence.drafts.next(left) if sequence.steps else (0, 0)
        if sequence.whole:
            drafted, accepted = 0, left
        ids = sequence.ids[sequence.sent : sequence.sent + accepted + 1]
        sequence.steps += 1
        sequence.sent += len(ids)
        sequence.drafted += drafted
        accepted = min(accepted, drafted)
        sequence.accepted += drafted if fault == "counts_rejected" else accepted
        over = sequence.sent >= len(sequence.ids)
        tensors = [
            pb_utils.Tensor("output_ids", np.array([[ids]], dtype=np.int32)),
            pb_utils.Tensor("sequence_length", np.array([[len(ids)]], dtype=np.int32)),
            pb_utils.Tensor("total_draft_tokens", np.array([[sequence.drafted]], dtype=np.int32)),
            pb_utils.Tensor("total_accepted_draft_tokens", np.array([[sequence.accepted]], dtype=np.int32)),
        ]
        sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if over else 0)
        sequence.due += sequence.script.step_ms / 1e3
        return over
