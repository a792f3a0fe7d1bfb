/*
 * The private module routecap._routecap: the functions and constants of routecap.h, as SWIG finds them there, with the header's own text.
 *
 * What is here is how arguments cross, so that no call from Python, however wrong, reads or writes memory that is not its own:
 *
 *   status            returned as a member of Status; a negative one raises what make_error makes of it and of the library's text
 *   data and structs  None, or an object with the buffer protocol, held for the call; its length is checked or passed on as the count. Pointers
 *                     inside structs are integers: the package's Python code fills them in from tensors that it has checked and holds
 *   capturer          a capsule of struct capturer, which knows how many calls are inside it; one that takes a stream or is of the sink is refused
 *                     during another
 *   store             a capsule, freed with it: whoever is in a call holds the capsule
 *   routing           a capsule of one reference, freed with the capsule: whoever is in a call holds the capsule
 *   outbox            a capsule, closed with it: whoever is in a call holds the capsule
 *   outputs           behind the status, as a tuple
 *
 * The GIL is released where a call waits, or works for long on this thread; a call of the forward path on CUDA does neither, and asking for the
 * GIL again could cost it more than it takes.
 */
%module _routecap

%{
#define ROUTECAP_EXPERIMENTAL
#include <routecap.h>

#include "outbox.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Errors ------------------------------------------------------------------------------- */

static PyObject *statuses;   /* {int: Status} */
static PyObject *make_error; /* (status, text) -> exception */

/* A text may quote bytes of a message, and may be cut within a character. */
static PyObject *text_of(const char *text) { return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); }

static void set_error(int32_t status, const char *text) {
    PyObject *words = text_of(text);
    PyObject *error = words == NULL ? NULL : PyObject_CallFunction(make_error, "iO", (int)status, words);
    Py_XDECREF(words);
    if (error == NULL) return;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
}

/* The status as a Status; NULL with the exception set if it is an error. */
static PyObject *result_of(int32_t status) {
    if (status < 0) {
        set_error(status, routecap_last_error());
        return NULL;
    }
    PyObject *number = PyLong_FromLong(status);
    PyObject *member = number == NULL ? NULL : PyObject_GetItem(statuses, number);
    Py_XDECREF(number);
    return member;
}

/* The error of a buffer that is too small, with what is needed as an attribute. */
static void set_too_small(uint64_t needed) {
    PyObject *type, *value, *trace, *number = PyLong_FromUnsignedLongLong(needed);
    set_error(ROUTECAP_ERR_BUFFER_TOO_SMALL, routecap_last_error());
    PyErr_Fetch(&type, &value, &trace);
    if (number != NULL && value != NULL && PyObject_SetAttrString(value, "needed", number) < 0) PyErr_Clear();
    PyErr_Restore(type, value, trace);
    Py_XDECREF(number);
}

/* result, and output behind it. Both references are taken. */
static PyObject *with_output(PyObject *result, PyObject *output) {
    PyObject *joined = NULL;
    if (output != NULL && PyTuple_Check(result)) {
        PyObject *last = PyTuple_Pack(1, output);
        if (last != NULL) joined = PySequence_Concat(result, last);
        Py_XDECREF(last);
    } else if (output != NULL) {
        joined = PyTuple_Pack(2, result, output);
    }
    Py_DECREF(result);
    Py_XDECREF(output);
    return joined;
}

/* ---- Numbers and buffers ------------------------------------------------------------------ */

static int unsigned_from(PyObject *object, unsigned long long most, const char *name, unsigned long long *value) {
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) return 0;
    *value = PyLong_AsUnsignedLongLong(index);
    int bad = *value == (unsigned long long)-1 && PyErr_Occurred() != NULL;
    if (bad) PyErr_Clear();
    Py_DECREF(index);
    if (bad || *value > most) {
        char text[96];
        PyOS_snprintf(text, sizeof text, "%s must be in [0, %llu]", name, most);
        set_error(ROUTECAP_ERR_ARGUMENT, text);
        return 0;
    }
    return 1;
}

static int signed_from(PyObject *object, long long least, long long most, const char *name, long long *value) {
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) return 0;
    *value = PyLong_AsLongLong(index);
    int bad = *value == -1 && PyErr_Occurred() != NULL;
    if (bad) PyErr_Clear();
    Py_DECREF(index);
    if (bad || *value < least || *value > most) {
        char text[96];
        PyOS_snprintf(text, sizeof text, "%s must be in [%lld, %lld]", name, least, most);
        set_error(ROUTECAP_ERR_ARGUMENT, text);
        return 0;
    }
    return 1;
}

/* A buffer's memory, to be released after the call; NULL for None. */
static int buffer_from(PyObject *object, int writable, const char *name, Py_buffer *buffer) {
    buffer->obj = NULL, buffer->buf = NULL, buffer->len = 0;
    if (object == Py_None) return 1;
    if (PyObject_GetBuffer(object, buffer, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) return 1;
    PyErr_Clear();
    buffer->obj = NULL;
    char text[128];
    PyOS_snprintf(text, sizeof text, "%s must be a C-contiguous %sbuffer", name, writable ? "writable " : "");
    set_error(ROUTECAP_ERR_ARGUMENT, text);
    return 0;
}

static int struct_from(PyObject *object, int writable, const char *name, size_t size, Py_buffer *buffer) {
    if (!buffer_from(object, writable, name, buffer)) return 0;
    if (buffer->buf == NULL || (size_t)buffer->len >= size) return 1;
    char text[128];
    PyOS_snprintf(text, sizeof text, "%s has %zd bytes, %zu are needed", name, buffer->len, size);
    set_error(ROUTECAP_ERR_ARGUMENT, text);
    return 0;
}

static int array_from(PyObject *object, int writable, const char *name, size_t size, Py_buffer *buffer) {
    if (!buffer_from(object, writable, name, buffer)) return 0;
    if ((size_t)buffer->len % size == 0) return 1;
    char text[128];
    PyOS_snprintf(text, sizeof text, "%s has %zd bytes, which is not a multiple of %zu", name, buffer->len, size);
    set_error(ROUTECAP_ERR_ARGUMENT, text);
    return 0;
}

/* ---- Lent memory -------------------------------------------------------------------------- */

/*
 * Memory of Python objects that routings refer to. The library gives it back on any thread, also one that Python does not know, and while it holds
 * locks: so it only goes on a list here, and is dropped when this module is called next, or by a pending call.
 */
struct lent {
    struct lent *next;
    PyObject *owner;
};
static _Atomic(struct lent *) returned;
static atomic_int scheduled; /* a pending call is on its way */
static atomic_int stopped;   /* the interpreter is about to end: no pending calls any more */
static atomic_int giving_back;

static struct lent *lend(PyObject *owner) {
    struct lent *lent = malloc(sizeof *lent);
    if (lent == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    Py_INCREF(owner);
    lent->owner = owner;
    return lent;
}

static void drop_returned(void) {
    struct lent *lent = atomic_exchange(&returned, NULL);
    while (lent != NULL) {
        struct lent *next = lent->next;
        Py_DECREF(lent->owner);
        free(lent);
        lent = next;
    }
}

static int drop_pending(void *unused) {
    (void)unused;
    atomic_store(&scheduled, 0);
    drop_returned();
    return 0;
}

static void give_back(void *context) {
    struct lent *lent = context;
    atomic_fetch_add(&giving_back, 1);
    lent->next = atomic_load(&returned);
    while (!atomic_compare_exchange_weak(&returned, &lent->next, lent)) {
    }
    if (!atomic_load(&stopped) && !atomic_exchange(&scheduled, 1) && Py_AddPendingCall(drop_pending, NULL) < 0) atomic_store(&scheduled, 0);
    atomic_fetch_sub(&giving_back, 1);
}

/* ---- Log ------------------------------------------------------------------------------------ */

/*
 * Lines go into a pipe that does not block, from which a thread of Python reads them: the library's threads never ask for the GIL. A line is shorter
 * than what a pipe takes at once, so that lines of several threads do not mix.
 */
static atomic_uint left_out; /* lines, since one went through */

static void write_line(void *context, int32_t level, const char *text) {
    char line[600];
    const unsigned before = atomic_exchange(&left_out, 0);
    const int n = snprintf(line, sizeof line, "%d %u %s\n", (int)level, before, text);
    if (n > 0 && write((int)(intptr_t)context, line, (size_t)n) == n) return;
    atomic_fetch_add(&left_out, before + 1);
}

/* ---- Handles ------------------------------------------------------------------------------ */

static const char capturer_name[] = "routecap_capturer", routing_name[] = "routecap_routing";

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL); }

/* Guarded by the GIL. */
struct capturer {
    routecap_capturer *capturer; /* NULL once it is destroyed, and of a disabled capturer never */
    PyObject *kept;              /* what the library writes or gives out until then */
    pid_t process;               /* in which `calls` is right */
    int host;                    /* record and snapshot do their work on the calling thread */
    int closed;
    int calls;     /* inside the library */
    int streaming; /* one of them is of those that one thread makes at a time */
    int views;     /* of the sink that are alive */
};

static void destroy_capturer(struct capturer *self) {
    routecap_capturer *capturer = self->capturer;
    PyObject *kept = self->kept;
    self->capturer = NULL, self->kept = NULL;
    if (capturer == NULL) return;
    Py_BEGIN_ALLOW_THREADS
    routecap_capturer_destroy(capturer);
    Py_END_ALLOW_THREADS
    Py_DECREF(kept);
}

static void free_capturer(PyObject *capsule) {
    struct capturer *self = PyCapsule_GetPointer(capsule, capturer_name);
    destroy_capturer(self);
    free(self);
}

/* Calls under way come to their end first. Views of the sink may outlive a capturer: then its memory goes with the last of them. */
static void close_capturer(struct capturer *self) {
    self->closed = 1;
    while (self->calls > 1 && self->process == getpid()) { /* the one is the call that closes */
        Py_BEGIN_ALLOW_THREADS
        nap();
        Py_END_ALLOW_THREADS
    }
    if (self->views == 0) destroy_capturer(self);
}

static PyObject *new_capturer(routecap_capturer *capturer, const routecap_config *config) {
    struct capturer *self = calloc(1, sizeof *self);
    PyObject *kept = PyList_New(0);
    PyObject *capsule = self == NULL || kept == NULL ? NULL : PyCapsule_New(self, capturer_name, free_capturer);
    if (capsule == NULL) {
        Py_XDECREF(kept);
        free(self);
        routecap_capturer_destroy(capturer);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    *self = (struct capturer){.capturer = capturer, .kept = kept, .process = getpid(), .host = config->backend == ROUTECAP_BACKEND_HOST};
    return capsule;
}

static struct capturer *capturer_from(PyObject *object) {
    struct capturer *self = object == Py_None ? NULL : PyCapsule_GetPointer(object, capturer_name);
    if (self != NULL && !self->closed) return self;
    if (!PyErr_Occurred()) set_error(ROUTECAP_ERR_STATE, "the capturer is closed");
    return NULL;
}

/* Of the calls that one thread makes at a time, those with a stream and the sink's, a second one is refused: the library does not lock them. */
static int enter_stream(struct capturer *self) {
    if (self->streaming && self->process == getpid()) {
        set_error(ROUTECAP_ERR_STATE, "another thread is in a call that takes a stream, or of the sink");
        return 0;
    }
    self->streaming = 1;
    return 1;
}

static void free_routing(PyObject *capsule) {
    routecap_routing_free(PyCapsule_GetPointer(capsule, routing_name));
    if (atomic_load(&returned) != NULL) drop_returned();
}

/* NULL, as an output, is None. */
static PyObject *new_routing(routecap_routing *routing) {
    if (routing == NULL) Py_RETURN_NONE;
    PyObject *capsule = PyCapsule_New(routing, routing_name, free_routing);
    if (capsule == NULL) routecap_routing_free(routing);
    return capsule;
}

/* A plan, which any number of threads use at once: the arguments of a call hold it. */
static const char plan_name[] = "routecap_plan";

static void free_plan(PyObject *capsule) { routecap_plan_free(PyCapsule_GetPointer(capsule, plan_name)); }

static PyObject *new_plan(routecap_plan *plan) {
    PyObject *capsule = plan == NULL ? NULL : PyCapsule_New(plan, plan_name, free_plan);
    if (capsule == NULL) routecap_plan_free(plan);
    return capsule;
}

/* An object of which one thread at a time is in a call: a decoder, a sequence. Guarded by the GIL. */
struct exclusive {
    void *object;
    void (*release)(void *object);
    int busy;
};
static const char decoder_name[] = "routecap_wire_decoder", sequence_name[] = "routecap_sequence";

static void free_decoder(void *decoder) { routecap_wire_decoder_free(decoder); }
static void free_sequence(void *sequence) { routecap_sequence_free(sequence); }

static void free_exclusive(PyObject *capsule) {
    struct exclusive *self = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    self->release(self->object);
    free(self);
    if (atomic_load(&returned) != NULL) drop_returned();
}

static PyObject *new_exclusive(void *object, const char *name, void (*release)(void *object)) {
    struct exclusive *self = calloc(1, sizeof *self);
    PyObject *capsule = self == NULL ? PyErr_NoMemory() : PyCapsule_New(self, name, free_exclusive);
    if (capsule == NULL) {
        free(self);
        release(object);
        return NULL;
    }
    self->object = object, self->release = release;
    return capsule;
}

static struct exclusive *exclusive_from(PyObject *object, const char *name) {
    if (object == Py_None) {
        set_error(ROUTECAP_ERR_STATE, "the object was freed");
        return NULL;
    }
    struct exclusive *self = PyCapsule_GetPointer(object, name);
    if (self == NULL || !self->busy) return self;
    char text[96];
    PyOS_snprintf(text, sizeof text, "another thread is in a call of this %s", name);
    set_error(ROUTECAP_ERR_STATE, text);
    return NULL;
}

static const char outbox_name[] = "outbox";

static void free_outbox(PyObject *capsule) {
    struct outbox *outbox = PyCapsule_GetPointer(capsule, outbox_name);
    Py_BEGIN_ALLOW_THREADS
    outbox_close(outbox);
    Py_END_ALLOW_THREADS
    if (atomic_load(&returned) != NULL) drop_returned();
}

static const char store_name[] = "routecap_store";

static void free_store(PyObject *capsule) { routecap_store_free(PyCapsule_GetPointer(capsule, store_name)); }

static PyObject *new_store(routecap_store *store) {
    PyObject *capsule = PyCapsule_New(store, store_name, free_store);
    if (capsule == NULL) routecap_store_free(store);
    return capsule;
}

static routecap_store *store_from(PyObject *object) {
    if (object != Py_None) return PyCapsule_GetPointer(object, store_name);
    set_error(ROUTECAP_ERR_STATE, "the store is closed");
    return NULL;
}

static routecap_routing *routing_from(PyObject *object) {
    if (object != Py_None) return PyCapsule_GetPointer(object, routing_name);
    set_error(ROUTECAP_ERR_STATE, "the routing was freed");
    return NULL;
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

static int32_t routing_bytes(const void *routing, uint32_t flags, void *dst, size_t dst_bytes, uint64_t *needed) {
    (void)flags; /* of sequences */
    return routecap_routing_serialize(routing, dst, dst_bytes, needed);
}
static int32_t sequence_bytes(const void *sequence, uint32_t flags, void *dst, size_t dst_bytes, uint64_t *needed) {
    return routecap_sequence_serialize(sequence, flags, dst, dst_bytes, needed);
}

/* New bytes that are written once. */
static PyObject *new_bytes(int32_t (*serialize)(const void *, uint32_t, void *, size_t, uint64_t *), const void *object, uint32_t flags) {
    uint64_t bytes = 0;
    int32_t status = serialize(object, flags, NULL, 0, &bytes);
    if (status < 0 && status != ROUTECAP_ERR_BUFFER_TOO_SMALL) return result_of(status);
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    char *memory = result == NULL ? NULL : PyBytes_AsString(result);
    if (memory == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = serialize(object, flags, memory, bytes, NULL);
    Py_END_ALLOW_THREADS
    if (status >= 0) return result;
    Py_DECREF(result);
    return result_of(status);
}

/* ---- A batch that is issued again ---------------------------------------------------------- */

static const char prepared_name[] = "routecap_prepared";

struct prepared {
    PyObject *capturer; /* the capsule */
    PyObject **names;   /* [requests], those without a span too */
    uint32_t *rows;     /* [requests] */
    size_t requests;
    size_t *order; /* [requests]: which name the dictionary of counts has at each place, if `ordered` */
    int ordered, asked;
    routecap_span *spans; /* [count] */
    size_t count;
    routecap_issue_options options;
};

static void free_prepared(PyObject *capsule) {
    struct prepared *self = PyCapsule_GetPointer(capsule, prepared_name);
    for (size_t i = 0; i < self->requests; i++) Py_DECREF(self->names[i]);
    Py_DECREF(self->capturer);
    free(self->names);
    free(self->rows);
    free(self->order);
    free(self->spans);
    free(self);
}

static PyObject *new_prepared(PyObject *capturer, PyObject *names, const uint32_t *rows, const routecap_span *spans, size_t count,
                              const routecap_issue_options *options) {
    const size_t requests = (size_t)PyList_Size(names);
    struct prepared *self = calloc(1, sizeof *self);
    PyObject *capsule = NULL;
    if (self != NULL) {
        self->names = calloc(requests + 1, sizeof *self->names), self->rows = malloc((requests + 1) * sizeof *rows);
        self->order = malloc((requests + 1) * sizeof *self->order), self->spans = malloc((count + 1) * sizeof *spans);
        if (self->names != NULL && self->rows != NULL && self->order != NULL && self->spans != NULL)
            capsule = PyCapsule_New(self, prepared_name, free_prepared);
    }
    if (capsule == NULL) {
        if (self != NULL) free(self->names), free(self->rows), free(self->order), free(self->spans);
        free(self);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    Py_INCREF(capturer);
    self->capturer = capturer, self->requests = requests, self->count = count, self->options = *options;
    memcpy(self->rows, rows, requests * sizeof *rows);
    memcpy(self->spans, spans, count * sizeof *spans);
    for (size_t i = 0; i < requests; i++) {
        self->names[i] = PyList_GetItem(names, (Py_ssize_t)i);
        Py_INCREF(self->names[i]);
    }
    return capsule;
}

/* Whether the counts are those of the prepared batch, in the order in which they came before: read one after another, where looking each up
   would find its string and its place outside of all caches. */
static int counts_in_order(const struct prepared *self, PyObject *counts) {
    PyObject *name, *rows;
    Py_ssize_t at = 0;
    size_t place = 0;
    if (!self->ordered || (size_t)PyDict_Size(counts) != self->requests) return 0;
    while (PyDict_Next(counts, &at, &name, &rows)) {
        const size_t i = self->order[place++];
        if (name != self->names[i] || PyLong_AsLong(rows) != (long)self->rows[i]) return 0;
    }
    return 1;
}

/* Notes the order of these counts, if they have the very names of the batch. Once: an engine in another process gives other objects each time. */
static void note_order(struct prepared *self, PyObject *counts) {
    PyObject *index = PyDict_New(), *name, *rows;
    Py_ssize_t at = 0;
    size_t place = 0;
    self->asked = 1;
    self->ordered = index != NULL && (size_t)PyDict_Size(counts) == self->requests;
    for (size_t i = 0; self->ordered && i < self->requests; i++) {
        PyObject *number = PyLong_FromSize_t(i);
        self->ordered = number != NULL && PyDict_SetItem(index, self->names[i], number) == 0;
        Py_XDECREF(number);
    }
    while (self->ordered && PyDict_Next(counts, &at, &name, &rows)) {
        PyObject *number = PyDict_GetItemWithError(index, name);
        const size_t i = number == NULL ? 0 : PyLong_AsSize_t(number);
        self->ordered = number != NULL && self->names[i] == name;
        self->order[place++] = i;
    }
    Py_XDECREF(index);
    PyErr_Clear();
}

/* Whether a batch is the prepared one: the same names, with as many rows each. */
static int is_again(struct prepared *self, PyObject *names, PyObject *counts) {
    if (!PyList_Check(names) || !PyDict_Check(counts) || (size_t)PyList_Size(names) != self->requests) return 0;
    for (size_t i = 0; i < self->requests; i++)
        if (PyList_GetItem(names, (Py_ssize_t)i) != self->names[i]) return 0;
    if (counts_in_order(self, counts)) return 1;
    if (PyErr_Occurred()) return 0;
    for (size_t i = 0; i < self->requests; i++) {
        PyObject *rows = PyDict_GetItemWithError(counts, self->names[i]);
        if (rows == NULL || PyLong_AsLong(rows) != (long)self->rows[i]) return 0;
    }
    if (!self->asked) note_order(self, counts);
    return 1;
}

static PyObject *with_output_of(PyObject *result, uint64_t number) {
    return result == NULL ? NULL : with_output(result, PyLong_FromUnsignedLongLong(number));
}

/* ---- Memory: what NumPy makes arrays of ---------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    void *address;
    Py_ssize_t bytes;
    int writable;
    PyObject *owner; /* the capsule whose memory it is */
} Memory;
static PyTypeObject *memory_type;

static int memory_get_buffer(PyObject *self, Py_buffer *buffer, int flags) {
    Memory *memory = (Memory *)self;
    return PyBuffer_FillInfo(buffer, self, memory->address, memory->bytes, !memory->writable, flags);
}

static void memory_free(PyObject *self) {
    Memory *memory = (Memory *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (PyCapsule_IsValid(memory->owner, capturer_name)) ((struct capturer *)PyCapsule_GetPointer(memory->owner, capturer_name))->views--;
    Py_XDECREF(memory->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int make_memory_type(void) {
    PyType_Slot slots[] = {{Py_bf_getbuffer, memory_get_buffer}, {Py_tp_dealloc, memory_free}, {0, NULL}};
    PyType_Spec spec = {.name = "routecap._routecap.Memory", .basicsize = sizeof(Memory), .slots = slots,
                        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION};
    memory_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return memory_type != NULL;
}

/* ---- DLPack: the two structs of the standard ----------------------------------------------- */

typedef struct {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dlpack_tensor;

typedef struct {
    uint32_t major;
    uint32_t minor;
    void *context;
    void (*deleter)(void *);
    uint64_t flags;
    dlpack_tensor tensor;
} dlpack_versioned;

typedef struct dlpack_plain {
    dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_plain *);
} dlpack_plain;

/* A tensor that is given away: consumers call the deleter on any thread. */
struct exported {
    dlpack_plain plain;
    int64_t dimensions[4]; /* shape, then strides */
};

static void free_exported(dlpack_plain *plain) {
    give_back(plain->context);
    free(plain);
}

static void free_unused(PyObject *capsule) { /* consumers rename what they take */
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    free_exported(PyCapsule_GetPointer(capsule, "dltensor"));
    drop_returned();
}
%}

%include <stdint.i>
%include <exception.i>

/* Structs are bytes laid out by routecap._structs. */
%rename("$ignore", %$isclass) "";

/* References to routings are capsules: see new_routing and routings_free. */
%ignore routecap_routing_retain;
%ignore routecap_routing_free;
/* And of decoders and sequences: see new_exclusive. Bytes are made by serialize and wire_encode, below. */
%ignore routecap_wire_decoder_free;
/* And of plans: see new_plan. */
%ignore routecap_plan_free;
/* And of stores: see new_store. */
%ignore routecap_store_free;
%ignore routecap_sequence_free;

/* ---- Scalars ------------------------------------------------------------------------------ */

%define %unsigned(TYPE, MOST)
%typemap(in) TYPE (unsigned long long value) {
    if (!unsigned_from($input, MOST, "$1_name", &value)) SWIG_fail;
    $1 = (TYPE)value;
}
%enddef
%unsigned(uint32_t, UINT32_MAX)
%unsigned(uint64_t, UINT64_MAX)
%unsigned(size_t, SIZE_MAX)
%unsigned(routecap_request, UINT64_MAX)
%unsigned(routecap_step, UINT64_MAX)

%define %signed(TYPE, LEAST, MOST)
%typemap(in) TYPE (long long value) {
    if (!signed_from($input, LEAST, MOST, "$1_name", &value)) SWIG_fail;
    $1 = (TYPE)value;
}
%enddef
%signed(int32_t, INT32_MIN, INT32_MAX)
%signed(int64_t, INT64_MIN, INT64_MAX)

%typemap(in) routecap_stream (unsigned long long value) {
    if (!unsigned_from($input, UINT64_MAX, "stream", &value)) SWIG_fail;
    $1 = (routecap_stream)(uintptr_t)value;
}

%typemap(out) int32_t {
    $result = result_of($1);
    if ($result == NULL) SWIG_fail;
}

/* The function table: only whether there is one. */
%typemap(out) const routecap_api * { $result = PyBool_FromLong($1 != NULL); }
%typemap(out) const char * { $result = text_of($1); }

/* ---- Handles ------------------------------------------------------------------------------ */

%typemap(in) routecap_capturer * (struct capturer *self = NULL), const routecap_capturer * (struct capturer *self = NULL) {
    self = capturer_from($input);
    if (self == NULL) SWIG_fail;
    self->calls++;
    $1 = self->capturer;
}
%typemap(freearg) routecap_capturer *, const routecap_capturer * {
    if (self$argnum != NULL) self$argnum->calls--;
}

%typemap(in, numinputs=0) routecap_capturer **capturer (routecap_capturer *made = NULL) { $1 = &made; }
%typemap(argout) routecap_capturer **capturer {
    $result = with_output($result, new_capturer(made$argnum, (const routecap_config *)buffer1.buf));
    if ($result == NULL) SWIG_fail;
}

%typemap(in) routecap_routing *, const routecap_routing * {
    $1 = routing_from($input);
    if ($1 == NULL) SWIG_fail;
}

%typemap(in, numinputs=0) routecap_store **store (routecap_store *made = NULL) { $1 = &made; }
%typemap(argout) routecap_store **store {
    $result = with_output($result, new_store(made$argnum));
    if ($result == NULL) SWIG_fail;
}
%typemap(in) routecap_store *, const routecap_store * {
    $1 = store_from($input);
    if ($1 == NULL) SWIG_fail;
}

%define %exclusive(TYPE, KIND)
%typemap(in) TYPE * (struct exclusive *held = NULL), const TYPE * (struct exclusive *held = NULL) {
    held = exclusive_from($input, KIND##_name);
    if (held == NULL) SWIG_fail;
    held->busy = 1;
    $1 = held->object;
}
%typemap(freearg) TYPE *, const TYPE * {
    if (held$argnum != NULL) held$argnum->busy = 0;
}
%typemap(in, numinputs=0) TYPE ** (TYPE *made = NULL) { $1 = &made; }
%typemap(argout) TYPE ** {
    $result = with_output($result, new_exclusive(made$argnum, KIND##_name, free_##KIND));
    if ($result == NULL) SWIG_fail;
}
%enddef
%exclusive(routecap_wire_decoder, decoder)
%exclusive(routecap_sequence, sequence)

%typemap(in, numinputs=0) routecap_plan **plan (routecap_plan *made = NULL) { $1 = &made; }
%typemap(argout) routecap_plan **plan {
    $result = with_output($result, new_plan(made$argnum));
    if ($result == NULL) SWIG_fail;
}
%typemap(in) const routecap_plan * {
    $1 = PyCapsule_GetPointer($input, plan_name);
    if ($1 == NULL) SWIG_fail;
}

/* Sources of a plan: a tuple of pairs of a sample's number and a routing. */
%typemap(in) (const routecap_plan_source *sources, size_t source_size, size_t count) (routecap_plan_source *array = NULL) {
    Py_ssize_t count = PyTuple_Check($input) ? PyTuple_Size($input) : -1;
    if (count < 0) SWIG_exception_fail(SWIG_TypeError, "sources must be a tuple");
    array = malloc(sizeof *array * ((size_t)count + 1));
    if (array == NULL) SWIG_exception_fail(SWIG_MemoryError, "no memory");
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GetItem($input, i);
        unsigned long long sample = 0;
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) SWIG_exception_fail(SWIG_TypeError, "a source must be a pair");
        if (!unsigned_from(PyTuple_GetItem(pair, 0), UINT64_MAX, "sample", &sample)) SWIG_fail;
        array[i].sample = sample;
        array[i].routing = routing_from(PyTuple_GetItem(pair, 1));
        if (array[i].routing == NULL) SWIG_fail;
    }
    $1 = array;
    $2 = sizeof *array;
    $3 = (size_t)count;
}
%typemap(freearg) (const routecap_plan_source *sources, size_t source_size, size_t count) { free(array$argnum); }

/* As many routings as are asked for, as a list. */
%typemap(in) (routecap_routing **routings, size_t count) (routecap_routing **array = NULL, unsigned long long number) {
    if (!unsigned_from($input, SIZE_MAX / sizeof *array - 1, "count", &number)) SWIG_fail;
    array = calloc((size_t)number + 1, sizeof *array);
    if (array == NULL) SWIG_exception_fail(SWIG_MemoryError, "no memory");
    $1 = array;
    $2 = (size_t)number;
}
%typemap(argout) (routecap_routing **routings, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)number$argnum);
    for (size_t i = 0; list != NULL && i < number$argnum; i++) {
        PyObject *each = new_routing(array$argnum[i]); /* which takes it, also if it fails */
        array$argnum[i] = NULL;
        if (each == NULL || PyList_SetItem(list, (Py_ssize_t)i, each) < 0) {
            Py_DECREF(list);
            list = NULL;
        }
    }
    $result = with_output($result, list);
    if ($result == NULL) SWIG_fail;
}
%typemap(freearg) (routecap_routing **routings, size_t count) {
    for (size_t i = 0; array$argnum != NULL && i < number$argnum; i++) routecap_routing_free(array$argnum[i]);
    free(array$argnum);
}

%define %routing_output(NAME)
%typemap(in, numinputs=0) routecap_routing **NAME (routecap_routing *made = NULL) { $1 = &made; }
%typemap(argout) routecap_routing **NAME {
    $result = with_output($result, new_routing(made$argnum));
    if ($result == NULL) SWIG_fail;
}
%enddef
%routing_output(routing)
%routing_output(prompt)
%routing_output(generated)
%routing_output(slice)
%routing_output(merged)

%typemap(in) (const routecap_routing *const *routings, size_t count) (const routecap_routing **array = NULL) {
    Py_ssize_t count = PyTuple_Check($input) ? PyTuple_Size($input) : -1;
    if (count < 0) SWIG_exception_fail(SWIG_TypeError, "routings must be a tuple");
    array = malloc(sizeof *array * ((size_t)count + 1));
    if (array == NULL) SWIG_exception_fail(SWIG_MemoryError, "no memory");
    for (Py_ssize_t i = 0; i < count; i++) {
        array[i] = routing_from(PyTuple_GetItem($input, i));
        if (array[i] == NULL) SWIG_fail;
    }
    $1 = ($1_ltype)array;
    $2 = (size_t)count;
}
%typemap(freearg) (const routecap_routing *const *routings, size_t count) { free(array$argnum); }

/* A tag, or None for all. */
%typemap(in) const uint64_t *tag (unsigned long long value, uint64_t number) {
    if ($input != Py_None) {
        if (!unsigned_from($input, UINT64_MAX, "tag", &value)) SWIG_fail;
        number = value;
        $1 = &number;
    }
}

/* ---- Numbers that are outputs -------------------------------------------------------------- */

%define %number_output(TYPE, NAME)
%typemap(in, numinputs=0) TYPE *NAME (TYPE number = 0) { $1 = &number; }
%typemap(argout) TYPE *NAME {
    $result = with_output($result, PyLong_FromUnsignedLongLong(number$argnum));
    if ($result == NULL) SWIG_fail;
}
%enddef
%number_output(uint64_t, needed)
%number_output(uint64_t, conflicting)
%number_output(uint64_t, count)
%number_output(uint64_t, missing_cells)
%number_output(routecap_step, step)
%number_output(routecap_request, child)
%number_output(uint64_t, leading)
%number_output(uint64_t, evicted)
%number_output(uint64_t, blocks)
%define %int_output(NAME)
%typemap(in, numinputs=0) int32_t *NAME (int32_t number = 0) { $1 = &number; }
%typemap(argout) int32_t *NAME {
    $result = with_output($result, PyLong_FromLong(number$argnum));
    if ($result == NULL) SWIG_fail;
}
%enddef
%int_output(format)
%int_output(descriptor)

/* ---- Structs and arrays -------------------------------------------------------------------- */

%define %struct_input(TYPE)
%typemap(in) const TYPE * (Py_buffer buffer = {0}) {
    if (!struct_from($input, 0, "$1_name", sizeof(TYPE), &buffer)) SWIG_fail;
    $1 = ($1_ltype)buffer.buf;
}
%typemap(freearg) const TYPE * { if (buffer$argnum.obj != NULL) PyBuffer_Release(&buffer$argnum); }
%enddef
%define %struct_output(TYPE)
%typemap(in) TYPE * (Py_buffer buffer = {0}) {
    if (!struct_from($input, 1, "$1_name", sizeof(TYPE), &buffer)) SWIG_fail;
    $1 = ($1_ltype)buffer.buf;
}
%typemap(freearg) TYPE * { if (buffer$argnum.obj != NULL) PyBuffer_Release(&buffer$argnum); }
%enddef
%struct_input(routecap_config)
%struct_input(routecap_sink)
%struct_input(routecap_source)
%struct_input(routecap_router)
%struct_input(routecap_logits)
%struct_input(routecap_received)
%struct_input(routecap_issue_options)
%struct_input(routecap_open_options)
%struct_input(routecap_copy_options)
%struct_input(routecap_view)
%struct_output(routecap_config)
%struct_output(routecap_sink)
%struct_output(routecap_router)
%struct_output(routecap_copy_options)
%struct_output(routecap_view)
%struct_output(routecap_backend)
%struct_output(routecap_memory)
%struct_output(routecap_stats)
%struct_output(routecap_load)
%struct_output(routecap_coverage)
%struct_output(routecap_serialized)
%struct_output(routecap_splice)
%struct_input(routecap_wire_hint)
%struct_input(routecap_wire_options)
%struct_output(routecap_wire_description)
%struct_output(routecap_wire_report)
%struct_input(routecap_plan_config)
%struct_input(routecap_plan_target)
%struct_output(routecap_plan_config)
%struct_output(routecap_plan_shape)
%struct_output(routecap_plan_report)
%struct_input(routecap_store_config)
%struct_output(routecap_store_config)
%struct_output(routecap_store_counts)
%struct_output(routecap_adoption)
%struct_input(routecap_sequence_config)
%struct_input(routecap_append_options)
%struct_output(routecap_append_report)

/* An array with the size of its elements and their number, from one buffer. */
%define %array(TYPE, NAME, WRITABLE, SIZE, COUNT)
%typemap(in) (TYPE *NAME, size_t SIZE, size_t COUNT) (Py_buffer buffer = {0}) {
    if (!array_from($input, WRITABLE, "$1_name", sizeof(*$1), &buffer)) SWIG_fail;
    $1 = ($1_ltype)buffer.buf;
    $2 = sizeof(*$1);
    $3 = (size_t)buffer.len / sizeof(*$1);
}
%typemap(freearg) (TYPE *NAME, size_t SIZE, size_t COUNT) { if (buffer$argnum.obj != NULL) PyBuffer_Release(&buffer$argnum); }
%enddef
%array(const routecap_span, spans, 0, span_size, count)
%array(const routecap_layer_source, layers, 0, layer_size, count)
%array(routecap_layer_probe, layers, 1, layer_size, count)
%array(routecap_layer_stats, stats, 1, stat_size, count)
%array(routecap_accept_item, items, 1, item_size, count)
%array(routecap_extract_item, items, 1, item_size, count)
%array(routecap_finish_item, items, 1, item_size, count)
%array(routecap_publish_item, items, 1, item_size, count)
%array(routecap_adopt_item, items, 1, item_size, count)
%array(routecap_missing, missing, 1, missing_size, capacity)
%array(routecap_piece, pieces, 1, piece_size, piece_capacity)
%array(routecap_plan_range, ranges, 1, range_size, capacity)
%array(routecap_sequence_span, spans, 1, span_size, capacity)

/* The same without the size. */
%define %plain_array(TYPE, NAME, WRITABLE, SIZE, COUNT)
%typemap(in) (TYPE *NAME, size_t COUNT) (Py_buffer buffer = {0}) {
    if (!array_from($input, WRITABLE, "$1_name", SIZE, &buffer)) SWIG_fail;
    $1 = ($1_ltype)buffer.buf;
    $2 = (size_t)buffer.len / SIZE;
}
%typemap(freearg) (TYPE *NAME, size_t COUNT) { if (buffer$argnum.obj != NULL) PyBuffer_Release(&buffer$argnum); }
%enddef
%plain_array(routecap_request, requests, 1, sizeof(routecap_request), count)
%plain_array(uint64_t, counts, 1, sizeof(uint64_t), count)
%plain_array(uint64_t, tags, 1, sizeof(uint64_t), capacity)
%plain_array(const void, data, 0, 1, bytes)
%plain_array(void, dst, 1, 1, dst_bytes)
%plain_array(uint8_t, mask, 1, 1, mask_bytes)
%plain_array(const void, head, 0, 1, head_bytes)
%plain_array(const void, tail, 0, 1, tail_bytes)
%plain_array(void, header, 1, 1, capacity)
%plain_array(const void, ids, 0, 1, ids_bytes)
%plain_array(uint8_t, classes, 1, 1, classes_bytes)
%plain_array(const uint8_t, classes, 0, 1, classes_bytes)
%plain_array(void, packed, 1, 1, packed_bytes)
%plain_array(const void, packed, 0, 1, packed_bytes)
%plain_array(const void, seed, 0, 1, seed_bytes)
%plain_array(const int32_t, tokens, 0, sizeof(int32_t), count)
%plain_array(void, keys, 1, 1, keys_bytes)
%plain_array(const int32_t *const, executed, 0, sizeof(const int32_t *), count)
%plain_array(int32_t, tokens, 1, sizeof(int32_t), capacity)

/* Arrays whose length the package has checked against the number that goes with them. */
%define %checked_array(TYPE, NAME, WRITABLE)
%typemap(in) TYPE *NAME (Py_buffer buffer = {0}) {
    if (!buffer_from($input, WRITABLE, "$1_name", &buffer)) SWIG_fail;
    $1 = ($1_ltype)buffer.buf;
}
%typemap(freearg) TYPE *NAME { if (buffer$argnum.obj != NULL) PyBuffer_Release(&buffer$argnum); }
%enddef
%checked_array(int32_t, status, 1)
%checked_array(int32_t, merged, 1)
%checked_array(const uint32_t, rows, 0)
%checked_array(const routecap_request, requests, 0)
%checked_array(const void *const, values, 0)
%checked_array(const void, fill, 0)
%checked_array(const void, keys, 0)
%checked_array(const void, from, 0)
%checked_array(const void, to, 0)
%checked_array(int32_t, reasons, 1)
%checked_array(const int32_t, tokens, 0)

/* The hook is a pipe to write lines into, by its descriptor; a negative one: there is none. */
%typemap(in) (routecap_log log, void *context) {
    const long descriptor = PyLong_AsLong($input);
    if (descriptor == -1 && PyErr_Occurred() != NULL) SWIG_fail;
    $1 = descriptor < 0 ? NULL : write_line;
    $2 = (void *)(intptr_t)descriptor;
}

/* The owner of memory that is lent, or None: then it is copied. */
%typemap(in) (routecap_release release, void *context) (struct lent *lent = NULL) {
    if (atomic_load(&returned) != NULL) drop_returned();
    if ($input != Py_None) {
        lent = lend($input);
        if (lent == NULL) SWIG_fail;
        $1 = give_back;
        $2 = lent;
    }
}
%typemap(argout) (routecap_release release, void *context) "lent$argnum = NULL;" /* from here on the library's */
%typemap(freearg) (routecap_release release, void *context) {
    if (lent$argnum != NULL) { /* the call failed */
        Py_DECREF(lent$argnum->owner);
        free(lent$argnum);
    }
}

/* ---- The GIL ------------------------------------------------------------------------------ */

%define %waits(FUNCTION)
%exception FUNCTION %{
    Py_BEGIN_ALLOW_THREADS
    $action
    Py_END_ALLOW_THREADS
%}
%enddef
%waits(routecap_capturer_create)
%waits(routecap_capturer_progress)
%waits(routecap_step_arrive)
%waits(routecap_step_finalize)
%waits(routecap_request_coverage)
%waits(routecap_request_extract)
%waits(routecap_request_extract_batch)
%waits(routecap_routing_wait)
%waits(routecap_routing_coverage)
%waits(routecap_routing_merge)
%waits(routecap_routing_deserialize)
%waits(routecap_routing_import)
%waits(routecap_wire_decode)
%waits(routecap_wire_decoder_write)
%waits(routecap_wire_decoder_finish)
%waits(routecap_plan_create)
%waits(routecap_plan_gather)
%waits(routecap_plan_gather_values)
%waits(routecap_plan_gather_weights)
%waits(routecap_plan_scatter)
%waits(routecap_plan_pack)
%waits(routecap_plan_unpack)
%waits(routecap_key_chain)
%waits(routecap_set_log)
%waits(routecap_sequence_append)
%waits(routecap_sequence_truncate)
%waits(routecap_sequence_fork)
%waits(routecap_sequence_routing)
%waits(routecap_sequence_tokens)
%waits(routecap_sequence_deserialize)

/* Likewise, into a buffer that may be too small; NUMBER is the place of `needed`. */
%define %waits_and_measures(FUNCTION, NUMBER)
%exception FUNCTION %{
    Py_BEGIN_ALLOW_THREADS
    $action
    Py_END_ALLOW_THREADS
    if (result == ROUTECAP_ERR_BUFFER_TOO_SMALL) {
        set_too_small(number##NUMBER);
        SWIG_fail;
    }
%}
%enddef
%waits_and_measures(routecap_request_extract_into, 10)
%waits_and_measures(routecap_routing_copy_to, 7)
%waits_and_measures(routecap_routing_copy_weights, 7)
%waits_and_measures(routecap_routing_serialize, 4)
%waits_and_measures(routecap_wire_encode, 5)
%waits_and_measures(routecap_sequence_serialize, 5)

/* Calls that one thread makes at a time; RELEASES: whether without the GIL. */
%define %by_one_thread(FUNCTION, RELEASES)
%exception FUNCTION %{
    if (!enter_stream(self1)) SWIG_fail;
    PyThreadState *thread = RELEASES ? PyEval_SaveThread() : NULL;
    $action
    if (thread != NULL) PyEval_RestoreThread(thread);
    self1->streaming = 0;
%}
%enddef
%by_one_thread(routecap_capturer_probe, 1)
%by_one_thread(routecap_step_begin, self1->host) /* on the host backend these work on the caller's thread, for each row */
%by_one_thread(routecap_step_snapshot, self1->host)
%by_one_thread(routecap_layer_record, self1->host)
%by_one_thread(routecap_layers_record, self1->host)
%by_one_thread(routecap_layer_route, self1->host)
%by_one_thread(routecap_received_read, self1->host)
%by_one_thread(routecap_received_compare, self1->host)
%by_one_thread(routecap_step_issue, 0)
%by_one_thread(routecap_step_discard, 0)
%by_one_thread(routecap_sink_bind, 0)
%by_one_thread(routecap_sink_layer, 0)

%exception routecap_capturer_destroy "(void)arg1; close_capturer(self1);"

/* Marks in comments, which programs read: docs/threading.md has them for people. */
%feature("doxygen:ignore:thread", range="line");
%feature("doxygen:ignore:waits", range="line");

#define ROUTECAP_API
#define ROUTECAP_EXPERIMENTAL
#define ROUTECAP_NODISCARD
%include "routecap/base.h"
%include "routecap/capture.h"
%include "routecap/record.h"
%include "routecap/reading.h"
%include "routecap/requests.h"
%include "routecap/routing.h"
%include "routecap/serialized.h"
%include "routecap/wire.h"
%include "routecap/plan.h"
%include "routecap/store.h"
%include "routecap/load.h"
/* A call without rows has no routing. */
%typemap(in) const routecap_routing *routing {
    $1 = $input == Py_None ? NULL : routing_from($input);
    if ($1 == NULL && $input != Py_None) SWIG_fail;
}
%include "routecap/sequence.h"
%clear const routecap_routing *routing;
%include "routecap/dispatch_check.h"
%include "routecap/diagnostics.h"
%include "routecap/table.h"

/* ---- Beside the header --------------------------------------------------------------------- */

%exception;
%unsigned(unsigned long long, UINT64_MAX)

%inline %{
/* The members of Status by their numbers, and what makes an exception of a status and its text. */
void use_statuses(PyObject *members, PyObject *factory) {
    Py_INCREF(members);
    Py_INCREF(factory);
    statuses = members;
    make_error = factory;
}

/* Before the interpreter ends: lent memory that comes back later stays where it is. */
void stop(void) {
    atomic_store(&stopped, 1);
    for (int i = 0; atomic_load(&giving_back) != 0 && i < 5000; i++) nap(); /* not without end: a forked child may wait for a thread that it lacks */
}

/* `object` is held until the capturer is destroyed. */
PyObject *keep(PyObject *capturer, PyObject *object) {
    struct capturer *self = capturer_from(capturer);
    if (self == NULL || PyList_Append(self->kept, object) < 0) return NULL;
    Py_RETURN_NONE;
}

/* The memory at an address, which belongs to its owner, as a buffer that holds this. A capturer may have been destroyed since it gave the address. */
PyObject *memory(unsigned long long address, unsigned long long bytes, int writable, PyObject *owner) {
    struct capturer *capturer = PyCapsule_IsValid(owner, capturer_name) ? PyCapsule_GetPointer(owner, capturer_name) : NULL;
    if (owner == Py_None || (capturer != NULL && capturer->capturer == NULL)) {
        set_error(ROUTECAP_ERR_STATE, owner == Py_None ? "memory without an owner" : "the capturer is closed");
        return NULL;
    }
    Memory *memory = PyObject_New(Memory, memory_type);
    if (memory == NULL) return NULL;
    if (capturer != NULL) capturer->views++;
    Py_INCREF(owner);
    memory->address = (void *)(uintptr_t)address, memory->bytes = (Py_ssize_t)bytes, memory->writable = writable, memory->owner = owner;
    return (PyObject *)memory;
}

/* One more reference to the routing at an index of an array of addresses; None where it is 0. Read and retained under one hold of the GIL, like
   routings_free: what is read was not freed. */
PyObject *routing_of(PyObject *addresses, size_t index) {
    Py_buffer buffer;
    if (!array_from(addresses, 0, "addresses", sizeof(uint64_t), &buffer)) return NULL;
    PyObject *result = NULL;
    if (index >= (size_t)buffer.len / sizeof(uint64_t)) {
        PyErr_SetString(PyExc_IndexError, "no such item");
    } else {
        routecap_routing *routing = (routecap_routing *)(uintptr_t)((const uint64_t *)buffer.buf)[index];
        result = routing != NULL && routecap_routing_retain(routing) < 0 ? result_of(ROUTECAP_ERR_INTERNAL) : new_routing(routing);
    }
    if (buffer.obj != NULL) PyBuffer_Release(&buffer);
    return result;
}

/* Free the references in an array of addresses, and set these to 0. */
PyObject *routings_free(PyObject *addresses) {
    Py_buffer buffer;
    if (!array_from(addresses, 1, "addresses", sizeof(uint64_t), &buffer)) return NULL;
    uint64_t *routings = buffer.buf;
    for (size_t i = 0; i < (size_t)buffer.len / sizeof *routings; i++) {
        routecap_routing_free((routecap_routing *)(uintptr_t)routings[i]);
        routings[i] = 0;
    }
    if (buffer.obj != NULL) PyBuffer_Release(&buffer);
    if (atomic_load(&returned) != NULL) drop_returned();
    Py_RETURN_NONE;
}

/* Where the library is: two libraries in one process would not know each other's objects. */
unsigned long long library_address(void) { return (unsigned long long)(uintptr_t)routecap_version; }

/* A string of the library's, at an address that it gave out. */
const char *text(unsigned long long address) { return (const char *)(uintptr_t)address; }

/* The serialised form of a routing as new bytes, written once. */
PyObject *serialize(PyObject *capsule) {
    routecap_routing *routing = routing_from(capsule);
    return routing == NULL ? NULL : new_bytes(routing_bytes, routing, 0);
}

/* An outbox at a name: see outbox.h. */
PyObject *open_outbox(const char *name) {
    struct outbox *outbox = outbox_open(name);
    if (outbox == NULL) return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *capsule = PyCapsule_New(outbox, outbox_name, free_outbox);
    if (capsule == NULL) outbox_close(outbox);
    return capsule;
}

/* Rows [first, end) of a routing, which may be in flight, for whoever has the ticket. */
PyObject *put_into_outbox(PyObject *capsule, PyObject *ticket, PyObject *routing, unsigned long long first, unsigned long long end,
                          unsigned long long most) {
    struct outbox *outbox = PyCapsule_GetPointer(capsule, outbox_name);
    const routecap_routing *rows = routing_from(routing);
    if (outbox == NULL || rows == NULL) return NULL;
    if (!PyBytes_Check(ticket) || PyBytes_Size(ticket) != OUTBOX_TICKET_BYTES || first > end) {
        PyErr_SetString(PyExc_ValueError, "a ticket is 16 bytes, and rows end where they begin or later");
        return NULL;
    }
    errno = outbox_put(outbox, (const uint8_t *)PyBytes_AsString(ticket), rows, first, end, most);
    if (errno != 0) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* And of a sequence. */
PyObject *sequence_serialize(PyObject *capsule, uint32_t flags) {
    struct exclusive *self = exclusive_from(capsule, sequence_name);
    if (self == NULL) return NULL;
    self->busy = 1;
    PyObject *result = new_bytes(sequence_bytes, self->object, flags);
    self->busy = 0;
    return result;
}

/* Arguments of issue for a batch that comes again and again: `names` of requests, with so many `rows` each. `spans`, of those that are captured, and
   `options` are those of a call that was made. */
PyObject *issue_prepared(PyObject *capturer, PyObject *names, PyObject *rows, PyObject *spans, PyObject *options) {
    Py_buffer counts = {0}, from = {0}, how = {0};
    PyObject *result = NULL;
    if (capturer_from(capturer) != NULL && array_from(rows, 0, "rows", sizeof(uint32_t), &counts) &&
        array_from(spans, 0, "spans", sizeof(routecap_span), &from) && struct_from(options, 0, "options", sizeof(routecap_issue_options), &how)) {
        if (!PyList_Check(names) || (size_t)PyList_Size(names) != (size_t)counts.len / sizeof(uint32_t) || how.buf == NULL)
            set_error(ROUTECAP_ERR_ARGUMENT, "names must be a list with as many as rows, and options be given");
        else
            result = new_prepared(capturer, names, counts.buf, from.buf, (size_t)from.len / sizeof(routecap_span), how.buf);
    }
    Py_buffer *const held[] = {&counts, &from, &how};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (held[i]->obj != NULL) PyBuffer_Release(held[i]);
    return result;
}

/* Issue the prepared batch: (status, ticket) as of routecap_step_issue. None, and nothing is done, if `names` is no list of the same objects, if `counts`
   has another number of rows for one of them, if `positions` or `tag` are others, or if step `oldest` has not landed. */
PyObject *issue_again(PyObject *prepared, PyObject *names, PyObject *counts, unsigned long long positions, unsigned long long tag,
                      unsigned long long oldest, unsigned long long stream) {
    struct prepared *self = PyCapsule_GetPointer(prepared, prepared_name);
    struct capturer *capturer = self == NULL ? NULL : capturer_from(self->capturer);
    if (capturer == NULL) return NULL;
    if ((uintptr_t)self->options.positions != positions || self->options.tag != tag || !is_again(self, names, counts)) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    if (oldest > 0 && routecap_step_poll(capturer->capturer, oldest) == ROUTECAP_PENDING) Py_RETURN_NONE;
    if (!enter_stream(capturer)) return NULL;
    capturer->calls++;
    routecap_step step = 0;
    const int32_t status = routecap_step_issue(capturer->capturer, self->spans, sizeof *self->spans, self->count, &self->options, NULL, &step,
                                               (routecap_stream)(uintptr_t)stream);
    capturer->calls--;
    capturer->streaming = 0;
    return with_output_of(result_of(status), step);
}

/* A message of a routing as new bytes, written once. `options` and `report` are structs. */
PyObject *wire_encode(PyObject *capsule, PyObject *options, PyObject *report) {
    Py_buffer from = {0}, to = {0};
    routecap_routing *routing = routing_from(capsule);
    PyObject *result = NULL;
    uint64_t bytes = 0;
    if (routing == NULL || !struct_from(options, 0, "options", sizeof(routecap_wire_options), &from)) return NULL;
    if (struct_from(report, 1, "report", sizeof(routecap_wire_report), &to)) {
        int32_t status = routecap_wire_encode(routing, from.buf, NULL, 0, &bytes, NULL);
        if (status < 0 && status != ROUTECAP_ERR_BUFFER_TOO_SMALL) {
            result_of(status);
        } else if ((result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes)) != NULL) {
            char *memory = PyBytes_AsString(result);
            Py_BEGIN_ALLOW_THREADS
            status = routecap_wire_encode(routing, from.buf, memory, bytes, NULL, to.buf);
            Py_END_ALLOW_THREADS
            if (status < 0) {
                Py_DECREF(result);
                result = result_of(status);
            }
        }
    }
    if (from.obj != NULL) PyBuffer_Release(&from);
    if (to.obj != NULL) PyBuffer_Release(&to);
    return result;
}

/* What a buffer is: address, format, bytes of an element, shape, strides in bytes, whether it may not be written. */
PyObject *describe_buffer(PyObject *object) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) return NULL;
    PyObject *shape = PyTuple_New(buffer.ndim), *strides = PyTuple_New(buffer.ndim), *result = NULL;
    for (int i = 0; i < buffer.ndim && shape != NULL && strides != NULL; i++) {
        PyTuple_SetItem(shape, i, PyLong_FromSsize_t(buffer.shape[i]));
        PyTuple_SetItem(strides, i, PyLong_FromSsize_t(buffer.strides[i]));
    }
    if (shape != NULL && strides != NULL)
        result = Py_BuildValue("KsnOOi", (unsigned long long)(uintptr_t)buffer.buf, buffer.format, buffer.itemsize, shape, strides, buffer.readonly);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    PyBuffer_Release(&buffer);
    return result;
}

/* What a DLPack capsule holds: address, type code, bits of an element, shape, strides in elements, whether it may not be written, device type and id.
   The capsule is not consumed: it is held as long as the memory is needed. */
PyObject *describe_dlpack(PyObject *capsule) {
    const dlpack_tensor *tensor;
    int readonly = 0;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const dlpack_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->major != 1) return PyErr_Format(PyExc_BufferError, "DLPack version %u", managed->major);
        tensor = &managed->tensor;
        readonly = (int)(managed->flags & 1u);
    } else {
        tensor = PyCapsule_GetPointer(capsule, "dltensor");
        if (tensor == NULL) return NULL;
    }
    if (tensor->lanes != 1) return PyErr_Format(PyExc_BufferError, "DLPack elements of %u lanes", tensor->lanes);
    PyObject *shape = PyTuple_New(tensor->ndim), *strides = PyTuple_New(tensor->ndim), *result = NULL;
    int64_t dense = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0 && shape != NULL && strides != NULL; i--) {
        PyTuple_SetItem(shape, i, PyLong_FromLongLong(tensor->shape[i]));
        PyTuple_SetItem(strides, i, PyLong_FromLongLong(tensor->strides != NULL ? tensor->strides[i] : dense));
        dense *= tensor->shape[i];
    }
    if (shape != NULL && strides != NULL)
        result = Py_BuildValue("KiiOOiii", (unsigned long long)(uintptr_t)tensor->data + tensor->byte_offset, (int)tensor->code,
                               (int)tensor->bits, shape, strides, readonly, (int)tensor->device_type, (int)tensor->device_id);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return result;
}

/* A DLPack capsule of memory on a CUDA device, [rows, k] signed integers of some bits; `owner` is held as long as a consumer has it. */
PyObject *make_dlpack(unsigned long long address, int32_t device, int32_t bits, uint64_t rows, uint64_t k, uint64_t row_stride, PyObject *owner) {
    struct lent *lent = lend(owner);
    struct exported *exported = lent == NULL ? NULL : calloc(1, sizeof *exported);
    if (exported == NULL) {
        if (lent != NULL) Py_DECREF(owner);
        free(lent);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    exported->dimensions[0] = (int64_t)rows, exported->dimensions[1] = (int64_t)k;
    exported->dimensions[2] = (int64_t)row_stride, exported->dimensions[3] = 1;
    exported->plain = (dlpack_plain){
        .tensor = {.data = (void *)(uintptr_t)address, .device_type = 2, .device_id = device, .ndim = 2, .code = 0, .bits = (uint8_t)bits, .lanes = 1,
                   .shape = exported->dimensions, .strides = exported->dimensions + 2},
        .context = lent, .deleter = free_exported};
    PyObject *capsule = PyCapsule_New(exported, "dltensor", free_unused);
    if (capsule == NULL) free_exported(&exported->plain);
    return capsule;
}
%}

%init %{
    if (!make_memory_type()) return -1;
%}
