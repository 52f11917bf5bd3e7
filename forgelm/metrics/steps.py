"""What the engine's steps tell: sizes and times, memory, guesses. Written once per step."""

from forgelm.ipc.messages import Stats, Step, Verification
from forgelm.metrics.buckets import ACCEPTED, DRAFT, ROWS, STEP
from forgelm.metrics.instruments import Book

TIERS = ("device", "host", "disk")


class Steps:
    """Figures of steps and of the KV cache."""

    def __init__(self, book: Book) -> None:
        self.running = book.gauge("requests_running", "Sequences that have a slot in the engine")
        self.cells = book.gauge("kv_cells_used", "KV cells held by running sequences")
        self.cells_cached = book.gauge(
            "kv_cells_cached", "KV cells held by finished requests alone, free for whoever needs them"
        )
        self.cells_highest = book.gauge(
            "kv_cells_highest", "The highest KV cell in use, plus one: what a decode has to visit"
        )
        self.cells_total = book.gauge("kv_cells", "KV cells of the loaded model")
        self.usage = book.gauge("kv_usage_ratio", "Part of the KV cells that running sequences hold, 0 to 1")
        self.host_bytes = book.gauge("host_tier_bytes", "RAM that saved prefixes and checkpoints take")
        self.preemptions = book.counter("preemptions", "Sequences that gave their memory back and went on later")
        self.queries = book.counter(
            "prefix_cache_queries", "Prompt tokens of sequences that began to run, which the prefix cache was asked for"
        )
        self.hits = book.counter("prefix_cache_hits", "Those of them that it had, by the slowest tier involved", "tier")
        self.seconds = book.histogram("step_seconds", "Duration of a step of the engine", STEP)
        self.rows = book.histogram("step_rows", "Batch size: tokens computed in a step, guesses included", ROWS)
        self.computed = book.counter(
            "computed_rows", "Tokens computed: of prompts, or decoded, guesses included", "phase"
        )
        self.decodes = book.counter("decodes", "Calls of llama_decode")
        self.ubatches = book.counter("ubatches", "Physical batches that they were split into")
        self.outputs = book.counter("output_rows", "Rows of which logits were wanted")
        self.host_seconds = book.counter(
            "host_seconds", "Part of the steps that the engine's own code took: drawing, grammars, verifying"
        )
        self.drafted = book.counter("draft_tokens", "Tokens guessed ahead and computed", "drafter")
        self.accepted = book.counter("draft_accepted_tokens", "Guessed tokens that were right", "drafter")
        self.draft_depth = book.histogram("draft_depth", "Tokens guessed at once for one sequence", DRAFT, "drafter")
        self.accepted_length = book.histogram(
            "draft_accepted_length", "How many of those were right", ACCEPTED, "drafter"
        )
        self.drafting_seconds = book.counter("drafting_seconds", "Time spent on guessing")
        self._prefill, self._decode = self.computed.labels("prefill"), self.computed.labels("decode")
        self._step, self._size = self.seconds.labels(), self.rows.labels()
        self._preempted = 0
        """What this engine process has counted so far."""
        for tier in TIERS:
            self.hits.labels(tier)

    def observe(self, step: Step) -> None:
        """Take in a step's figures."""
        stats = step.stats
        if stats.decodes:
            self._computed(stats)
        if stats.preemptions != self._preempted:
            self.preemptions.inc(stats.preemptions - self._preempted)
            self._preempted = stats.preemptions
        for each in step.admissions:
            self.queries.inc(each.tokens)
            if each.tier:
                self.hits.labels(each.tier).inc(each.cached)
        for verification in stats.verifications:
            self._guessed(verification)
        if stats.drafting:
            self.drafting_seconds.inc(stats.drafting)

    def engine_gone(self) -> None:
        """The next step comes from another engine process, which counts from 0."""
        self._preempted = 0

    def _computed(self, stats: Stats) -> None:
        self._step.observe(stats.seconds)
        self._size.observe(stats.prefill_tokens + stats.decode_tokens)
        self._prefill.value += stats.prefill_tokens
        self._decode.value += stats.decode_tokens
        self.decodes.inc(stats.decodes)
        self.ubatches.inc(stats.ubatches)
        self.outputs.inc(stats.output_rows)
        self.host_seconds.inc(stats.host_seconds)

    def _guessed(self, each: Verification) -> None:
        """What became of one sequence's guesses in a step."""
        self.drafted.labels(each.drafter).inc(each.drafted)
        self.accepted.labels(each.drafter).inc(each.accepted)
        self.draft_depth.labels(each.drafter).observe(each.drafted)
        self.accepted_length.labels(each.drafter).observe(each.accepted)
