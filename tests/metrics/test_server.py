"""CPU time over several processes, downloads between two looks, cards that come and go."""

from forgelm.ipc.registry import Download
from forgelm.ipc.status import GpuStatus
from forgelm.metrics import Metrics
from forgelm.metrics.instruments import Book
from forgelm.metrics.server import CpuTime, Downloads
from forgelm.processes import ProcessUse
from tests.metrics.test_instruments import read

CARD = GpuStatus(0, "GPU-a", "RTX 3070", 5, 8, 0.5, 100.0, 60.0)


def cpu(seconds: float) -> ProcessUse:
    return ProcessUse(1, seconds)


def job(state: str, done: int, name: str = "1") -> Download:
    return Download(name, "owner/repo", "file.gguf", "main", state, 1.0, done, 100)  # type: ignore[arg-type]


def test_cpu_time_of_a_process_that_ended_isnt_taken_back() -> None:
    time = CpuTime()
    assert dict(time.update([("engine", 7, cpu(5.0)), ("api", 1, cpu(1.0))])) == {("engine",): 5.0, ("api",): 1.0}
    assert dict(time.update([("engine", 7, cpu(6.0)), ("api", 1, cpu(2.0))])) == {("engine",): 6.0, ("api",): 2.0}
    # It crashed and is down, then another one is there.
    assert dict(time.update([("api", 1, cpu(2.0))]))[("engine",)] == 6.0
    assert dict(time.update([("engine", 9, cpu(0.5))]))[("engine",)] == 6.5
    # Its number was given to another process of ours.
    assert dict(time.update([("engine", 9, cpu(0.25))]))[("engine",)] == 6.75


def test_downloads_of_an_earlier_server_arent_counted() -> None:
    book = Book("")
    downloads = Downloads(book)
    assert ("downloads_running", ()) not in read(book)
    downloads.update([job("done", 100), job("downloading", 40, "2")])
    found = read(book)
    assert found["downloads_running", ()] == 1
    assert found["download_bytes_total", ()] == 0
    assert found["downloads_total", (("outcome", "done"),)] == 0
    downloads.update([job("done", 100), job("downloading", 90, "2"), job("queued", 0, "3")])
    found = read(book)
    assert found["downloads_running", ()] == 2
    assert found["download_bytes_total", ()] == 50
    downloads.update([job("done", 100), job("done", 100, "2"), job("failed", 30, "3"), job("cancelled", 5, "4")])
    downloads.update([job("done", 100, "2"), job("failed", 30, "3")])
    found = read(book)
    assert found["downloads_running", ()] == 0
    assert found["download_bytes_total", ()] == 95
    assert [found["downloads_total", (("outcome", each),)] for each in ("done", "failed", "cancelled")] == [1, 1, 1]


def test_a_download_that_is_tried_again_ends_twice() -> None:
    book = Book("")
    downloads = Downloads(book)
    for state, done in (("downloading", 10), ("failed", 20), ("downloading", 0), ("done", 100)):
        downloads.update([job(state, done)])
    found = read(book)
    assert found["downloads_total", (("outcome", "failed"),)] == found["downloads_total", (("outcome", "done"),)] == 1
    assert found["download_bytes_total", ()] == 110


def test_a_figure_that_a_card_doesnt_tell_is_no_series() -> None:
    metrics = Metrics()
    metrics.gpus.show((CARD, GpuStatus(1, "GPU-b", "GT 710", 1, 2)))
    text = metrics.render().decode()
    assert 'forgelm_gpu_power_watts{gpu="0",uuid="GPU-a"} 100.0' in text
    assert 'forgelm_gpu_memory_used_bytes{gpu="1",uuid="GPU-b"} 1.0' in text
    assert 'forgelm_gpu_present{gpu="1",name="GT 710",uuid="GPU-b"} 1.0' in text
    assert 'forgelm_gpu_power_watts{gpu="1"' not in text
    metrics.gpus.show(())
    assert 'uuid="GPU-a"' not in metrics.render().decode()
