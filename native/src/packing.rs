//! The packer of the module `evenq_native`: the messages of one call, as objects of the store, into bytes.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::record::{ENTRY_BYTES, Placed, STEM_BYTES, frame_bytes};

/// A message of the call.
struct Entry<'py> {
    object: Bound<'py, PyAny>,
    head: Bound<'py, PyBytes>,
    system: Bound<'py, PyBytes>,
    tag_hash: i64,
    born_ms: i64,
    queue: usize,
    queue_offset: u64,
    log_offset: u64,
    size: u32,
}

/// A queue that gets messages of the call.
struct Queue<'py> {
    object: Bound<'py, PyAny>,
    ids: (u32, u32),
    next_offset: u64,
    stem: [u8; STEM_BYTES],
    last_stem: [u8; STEM_BYTES],
}

/// All messages of a call with their places, and nothing changed yet.
struct Call<'py> {
    entries: Vec<Entry<'py>>,
    queues: Vec<Queue<'py>>,
    by_ids: HashMap<(u32, u32), usize>,
    end: u64,
}

type Packed<'py> = (Bound<'py, PyBytes>, u64, Bound<'py, PyList>);

/// Packs the messages of a call behind `log_offset`. Returns their bytes, the end, and for each queue itself, its new
/// end, the bytes of its entries and its messages; sets the places of the messages. None, and nothing is changed: they do
/// not fit before `segment_end`, or a value does not fit its field.
///
/// `queue_of` returns a queue with its next offset, the stem of its messages, and that of the last one of a call.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an object for them would cost more than packing a message")]
pub fn pack_messages<'py>(
    py: Python<'py>,
    entries: &Bound<'py, PyAny>,
    queue_of: &Bound<'py, PyAny>,
    log_offset: u64,
    segment_end: u64,
    synced_end: &Bound<'py, PyAny>,
    store_ms: &Bound<'py, PyAny>,
    more: bool,
) -> PyResult<Option<Packed<'py>>> {
    let (Ok(synced_end), Ok(time_ms)) = (synced_end.extract::<u64>(), store_ms.extract::<i64>()) else {
        return Ok(None);
    };
    let mut call = Call { entries: Vec::new(), queues: Vec::new(), by_ids: HashMap::new(), end: log_offset };
    for object in entries.try_iter()? {
        if !call.place(object?, queue_of, segment_end)? {
            return Ok(None);
        }
    }
    if call.entries.is_empty() {
        return Ok(None);
    }
    // A panic is a defect of this module: then Python packs.
    let Ok(written) = catch_unwind(AssertUnwindSafe(|| call.write(py, log_offset, synced_end, time_ms, more))) else {
        return Ok(None);
    };
    let (data, tails) = written?;
    let messages: Vec<Bound<'py, PyList>> = call.queues.iter().map(|_| PyList::empty(py)).collect();
    for entry in &call.entries {
        entry.object.setattr(intern!(py, "queue_offset"), entry.queue_offset)?;
        entry.object.setattr(intern!(py, "log_offset"), entry.log_offset)?;
        entry.object.setattr(intern!(py, "store_ms"), store_ms)?;
        messages[entry.queue].append(&entry.object)?;
    }
    let queues = PyList::empty(py);
    for ((queue, tail), messages) in call.queues.iter().zip(tails).zip(messages) {
        queues.append((&queue.object, queue.next_offset, PyBytes::new(py, &tail), messages))?;
    }
    Ok(Some((data, call.end, queues)))
}

impl<'py> Call<'py> {
    /// Gives a message its place; false: Python must pack the call.
    fn place(&mut self, object: Bound<'py, PyAny>, queue_of: &Bound<'py, PyAny>, segment_end: u64) -> PyResult<bool> {
        let py = object.py();
        let number = |name| object.getattr(name).ok()?.extract::<u32>().ok();
        let (Some(topic_id), Some(queue_id)) = (number(intern!(py, "topic_id")), number(intern!(py, "queue_id")))
        else {
            return Ok(false);
        };
        let Some(queue) = self.queue((topic_id, queue_id), queue_of)? else {
            return Ok(false);
        };
        let Some((tag_hash, born_ms, head, system)) = fields_of(&object) else {
            return Ok(false);
        };
        let Some(size) = frame_bytes(head.as_bytes(), system.as_bytes()) else {
            return Ok(false);
        };
        let (log_offset, queue_offset) = (self.end, self.queues[queue].next_offset);
        let (Some(end), Some(next)) = (log_offset.checked_add(size.into()), queue_offset.checked_add(1)) else {
            return Ok(false);
        };
        if end > segment_end {
            return Ok(false);
        }
        self.end = end;
        self.queues[queue].next_offset = next;
        self.entries.push(Entry { object, head, system, tag_hash, born_ms, queue, queue_offset, log_offset, size });
        Ok(true)
    }

    /// Returns the index of a queue; None: Python must pack the call.
    fn queue(&mut self, ids: (u32, u32), queue_of: &Bound<'py, PyAny>) -> PyResult<Option<usize>> {
        if let Some(last) = self.entries.last()
            && self.queues[last.queue].ids == ids
        {
            return Ok(Some(last.queue));
        }
        if let Some(index) = self.by_ids.get(&ids) {
            return Ok(Some(*index));
        }
        let of = queue_of.call1(ids)?.extract::<(Bound<'py, PyAny>, u64, Bound<'py, PyBytes>, Bound<'py, PyBytes>)>();
        let Ok((object, next_offset, stem, last_stem)) = of else {
            return Ok(None);
        };
        let (Ok(stem), Ok(last_stem)) = (stem.as_bytes().try_into(), last_stem.as_bytes().try_into()) else {
            return Ok(None);
        };
        self.by_ids.insert(ids, self.queues.len());
        self.queues.push(Queue { object, ids, next_offset, stem, last_stem });
        Ok(Some(self.queues.len() - 1))
    }

    /// Returns the frames of all messages, and the entries of each queue.
    fn write(
        &self,
        py: Python<'py>,
        start: u64,
        synced_end: u64,
        store_ms: i64,
        more: bool,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<Vec<u8>>)> {
        let mut tails: Vec<Vec<u8>> = self.queues.iter().map(|_| Vec::new()).collect();
        let data = PyBytes::new_with(py, usize::try_from(self.end - start)?, |mut target| {
            for (index, entry) in self.entries.iter().enumerate() {
                let (frame, rest) = target.split_at_mut(entry.size as usize);
                target = rest;
                let queue = &self.queues[entry.queue];
                let message = Placed {
                    queue_offset: entry.queue_offset,
                    log_offset: entry.log_offset,
                    synced_end,
                    store_ms,
                    born_ms: entry.born_ms,
                    tag_hash: entry.tag_hash,
                    head: entry.head.as_bytes(),
                    system: entry.system.as_bytes(),
                };
                let is_last = index + 1 == self.entries.len() && !more;
                message.write(frame, if is_last { &queue.last_stem } else { &queue.stem }, entry.size);
                let entry_bytes: [u8; ENTRY_BYTES] = message.entry(entry.size);
                tails[entry.queue].extend_from_slice(&entry_bytes);
            }
            Ok(())
        })?;
        Ok((data, tails))
    }
}

type Fields<'py> = (i64, i64, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Returns tag hash, born ms, head and system properties of a message; None: one of them does not fit its field.
fn fields_of<'py>(object: &Bound<'py, PyAny>) -> Option<Fields<'py>> {
    let py = object.py();
    let number = |name| object.getattr(name).ok()?.extract::<i64>().ok();
    let bytes = |name| object.getattr(name).ok()?.cast_into::<PyBytes>().ok();
    Some((
        number(intern!(py, "tag_hash"))?,
        number(intern!(py, "born_ms"))?,
        bytes(intern!(py, "head"))?,
        bytes(intern!(py, "system"))?,
    ))
}
