"""Inspect counts what there is and says what a start would read."""

from evenq.store.inspection.survey import survey
from evenq.store.log.record import MESSAGE, PADDING, STATE


def test_files_queues_and_snapshots_are_counted(filled):
    disk = filled()
    seen = survey(disk, owner=lambda: None)
    assert [row.start for row in seen.segments] == list(range(0, 4096 * len(seen.segments), 4096))
    assert sum(row.frames[MESSAGE] for row in seen.segments) == 60
    assert sum(row.frames[STATE] for row in seen.segments) == 60
    assert all(row.frames[PADDING] <= 1 for row in seen.segments)
    assert all(row.first_ms <= row.last_ms for row in seen.segments)
    assert [(row.topic_id, row.queue_id, row.min_offset, row.max_offset, row.filed) for row in seen.queues] == [
        (1, queue, 0, 20, 20) for queue in range(3)
    ]
    assert [file.good for file in seen.folder.snapshots] == [True, True]
    assert seen.scan_from == seen.folder.snapshot.log_offset
    assert seen.scan_bytes == seen.folder.log_end - seen.scan_from


def test_quick_reads_no_more_than_the_first_records(filled):
    seen = survey(filled(), owner=lambda: "17", quick=True)
    assert seen.folder.running
    assert all(not row.frames and row.first_ms and row.epoch == 1 for row in seen.segments)


def test_without_a_checkpoint_a_start_reads_everything(filled):
    disk = filled()
    disk.remove("checkpoint")
    seen = survey(disk, owner=lambda: None)
    assert seen.scan_from == 0
    assert [row.filed for row in seen.queues] == [20, 20, 20]
