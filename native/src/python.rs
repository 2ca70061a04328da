//! The module `evenq_native`.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::digest::BodyDigest;
use crate::plain::{Limits, Message, Texts, read_block, read_send};

/// Requests with this number of bytes are digested without the interpreter's lock, as `hashlib` does it.
const DETACHED_BYTES: usize = 64 << 10;

/// Texts of one request. Rules that depend on Python's tables of characters, or are the broker's, stay in Python.
struct PythonTexts<'a, 'py> {
    py: Python<'py>,
    tag_hash_of: &'a Bound<'py, PyAny>,
    last: Option<(String, i64)>,
    error: Option<PyErr>,
}

impl PythonTexts<'_, '_> {
    fn kept<T>(&mut self, outcome: PyResult<T>) -> Option<T> {
        outcome.map_err(|error| self.error = Some(error)).ok()
    }
}

impl Texts for PythonTexts<'_, '_> {
    fn tag_hash(&mut self, tag: &str) -> Option<i64> {
        if let Some((last, hash)) = &self.last
            && last == tag
        {
            return Some(*hash);
        }
        let outcome = self.tag_hash_of.call1((PyBytes::new(self.py, tag.as_bytes()),)).and_then(|hash| hash.extract());
        let hash = self.kept(outcome).filter(|hash| *hash != 0)?;
        self.last = Some((tag.to_owned(), hash));
        Some(hash)
    }

    fn is_printable(&mut self, text: &str) -> bool {
        let outcome = PyString::new(self.py, text).call_method0("isprintable").and_then(|answer| answer.extract());
        self.kept(outcome).unwrap_or(false)
    }
}

/// Reader of plain requests under the limits of one broker.
#[pyclass(frozen, module = "evenq_native")]
struct PlainReader {
    limits: Limits,
    crc32_head: Vec<u8>,
    md5_head: Vec<u8>,
    system_end: Vec<u8>,
    broker_name: String,
    tag_hash_of: Py<PyAny>,
    append: Py<PyAny>,
}

type Columns<'py> = (Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyList>);

#[pymethods]
impl PlainReader {
    #[new]
    #[pyo3(signature = (
        *, append, tag_hash_of, broker_name, body_bytes_max, properties_max, properties_bytes_max, keys_max,
        reserved_properties, crc32_head, md5_head, system_end,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a constructor")]
    fn new(
        append: Py<PyAny>,
        tag_hash_of: Py<PyAny>,
        broker_name: String,
        body_bytes_max: usize,
        properties_max: usize,
        properties_bytes_max: usize,
        keys_max: usize,
        reserved_properties: Vec<String>,
        crc32_head: Vec<u8>,
        md5_head: Vec<u8>,
        system_end: Vec<u8>,
    ) -> Self {
        let reserved: HashSet<Vec<u8>> = reserved_properties.into_iter().map(String::into_bytes).collect();
        let limits = Limits { body_bytes_max, properties_max, properties_bytes_max, keys_max, reserved };
        Self { limits, crc32_head, md5_head, system_end, broker_name, tag_hash_of, append }
    }

    /// Reads a SendMessageRequest. Returns the topic, entries for the store, message ids and keys of the window of
    /// duplicates, or None if it is not plain. The digest of a body whose CRC32 is below `crc_min` is MD5.
    fn read<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyBytes>,
        crc_min: u64,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let data = request.as_bytes();
        let Some(send) = self.parsed(py, |texts| read_send(data, &self.limits, texts))? else {
            return Ok(None);
        };
        let (entries, ids, keys) = self.columns(py, data.len(), crc_min, &send.messages, b"")?;
        Ok(Some((send.topic, entries, ids, keys).into_pyobject(py)?))
    }

    /// Reads a PublishRequest. Returns topic, queue (-1: any), entries, message ids and keys, or None likewise.
    fn read_block<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyBytes>,
        crc_min: u64,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let data = request.as_bytes();
        let Some(block) = self.parsed(py, |texts| read_block(data, &self.broker_name, &self.limits, texts))? else {
            return Ok(None);
        };
        let (entries, ids, keys) = self.columns(py, data.len(), crc_min, &block.messages, &block.left_out)?;
        Ok(Some((block.topic, block.queue_id, entries, ids, keys).into_pyobject(py)?))
    }
}

impl PlainReader {
    /// Calls `read`. A panic is a defect of the reader: then the request is not plain.
    fn parsed<'py, T>(
        &self,
        py: Python<'py>,
        read: impl FnOnce(&mut PythonTexts<'_, 'py>) -> Option<T>,
    ) -> PyResult<Option<T>> {
        let tag_hash_of = self.tag_hash_of.bind(py);
        let mut texts = PythonTexts { py, tag_hash_of, last: None, error: None };
        let parsed = catch_unwind(AssertUnwindSafe(|| read(&mut texts))).unwrap_or(None);
        texts.error.map_or(Ok(parsed), Err)
    }

    fn columns<'py>(
        &self,
        py: Python<'py>,
        request_bytes: usize,
        crc_min: u64,
        messages: &[Message<'_>],
        left_out: &[u8],
    ) -> PyResult<Columns<'py>> {
        let all = || messages.iter().map(|message| BodyDigest::of(message.body, crc_min)).collect::<Vec<_>>();
        let digests = if request_bytes < DETACHED_BYTES { all() } else { py.detach(all) };
        let (entries, ids, keys) = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
        let append = self.append.bind(py);
        for (message, digest) in messages.iter().zip(&digests) {
            let head = joined(py, &[left_out, message.head, message.body_field])?;
            let (digest_head, digits) = match &digest.md5 {
                Some(md5) => (&self.md5_head, md5.as_slice()),
                None => (&self.crc32_head, digest.mark.as_slice()),
            };
            let system = joined(py, &[message.system, digest_head, digits, &self.system_end])?;
            entries.append(append.call1((0, message.queue_id, message.tag_hash, message.born_ms, head, system))?)?;
            ids.append(PyBytes::new(py, message.id))?;
            keys.append(joined(py, &[message.id, &digest.mark])?)?;
        }
        Ok((entries, ids, keys))
    }
}

/// Returns the parts in one object, without a copy between.
fn joined<'py>(py: Python<'py>, parts: &[&[u8]]) -> PyResult<Bound<'py, PyBytes>> {
    let size = parts.iter().map(|part| part.len()).sum();
    PyBytes::new_with(py, size, |mut target| {
        for part in parts {
            let (own, rest) = target.split_at_mut(part.len());
            own.copy_from_slice(part);
            target = rest;
        }
        Ok(())
    })
}

/// Optional compiled accelerator of evenq's broker.
#[pymodule]
mod evenq_native {
    #[pymodule_export]
    use super::PlainReader;
    #[pymodule_export]
    use crate::packing::pack_messages;

    /// Version of evenq that it belongs to.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "a name of Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
