/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV-view contract, checked natively on every use.
 *
 * A tensor is read through the DLPack C exchange API, published by torch since 2.10
 * (torch.Tensor.__dlpack_c_exchange_api__): address, shape, strides, data type and device, without torch's headers and
 * without a capsule. The shape is read in place, inside the tensor's C++ object, so another address of the shape is
 * another object under the same Python name. DLPack folds the storage offset into the address, so the offset and the
 * storage's length are read through torch's C shim (aoti_torch_get_storage_offset), at a tenth of the cost of the
 * Python method. All these fields lie in a few words of torch's C++ objects. If layout.py has found the words, their
 * image is kept after a successful check, and a tensor with unchanged words is not read again. This module words no
 * drift: on any difference it calls the Python contract, which names the field; if that one sees none, it raises the
 * disagreement.
 *
 * All types are heap types of a multi-phase module, tracked by the garbage collector because they hold tensors and
 * callables. They are immutable except for Seam.views, whose replacement the contract must notice.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include <dlpack/dlpack.h>

enum { DIMENSIONS = 4, VIEWS = 4, TENSORS = 1 + VIEWS };
enum { INLINE_DIMENSIONS = 5, BINDING = 2 }; /* see Geometry and Image */
enum { LINE = 64, MOST_LINES = 40 }; /* bytes of a cache line, and the most lines fetched ahead */

/* The used part of torch's C shim, a stable binary interface
 * (torch/csrc/inductor/aoti_torch/c/shim.h; seen in torch 2.11 to 2.14). All return 0 for success. */
typedef struct {
    int32_t (*get_storage_offset)(void *tensor, int64_t *offset);
    int32_t (*get_storage_size)(void *tensor, int64_t *bytes);
    int32_t (*delete_tensor)(void *tensor);
} Shim;

typedef struct {
    const DLPackExchangeAPI *api;
    Shim shim;
    PyObject *make_handle; /* torch._C._aoti.unsafe_alloc_void_ptr_from_tensor */
    PyObject *dim;            /* the interned keyword */
    PyObject *refuse_seam_call;
    PyObject *refuse_disagreement;
    PyTypeObject *seam_type;
    PyTypeObject *contract_type;
    PyTypeObject *canonicalize_type;
    PyObject *geometries; /* dict: shared bytes, see Geometry */
    PyObject *checked[2]; /* key and value alias of the present use, until asked for */
    unsigned long long all_hits;
    Py_ssize_t words_at; /* bytes from a tensor's C++ object to its words; 0 if unknown */
    struct Contract *latest; /* the last used contract; borrowed, reset on its release */
} ModuleState;

/* ---- Seam --------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *views; /* (key, value); writable from Python, compared by the contract on every use */
    PyObject *owner;
    Py_ssize_t head_size;
    PyObject *dim; /* the interned keyword */
} Seam;

static PyObject *
seam_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *views, *owner;
    Py_ssize_t head_size;
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Seam: seen keyword arguments; expected none");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!nU:Seam", &PyTuple_Type, &views, &head_size, &owner)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(views) != 2) {
        PyErr_Format(PyExc_ValueError, "Seam: seen %zd aliases; expected a key and a value", PyTuple_GET_SIZE(views));
        return NULL;
    }
    Seam *self = (Seam *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->views = Py_NewRef(views);
    self->owner = Py_NewRef(owner);
    self->head_size = head_size;
    self->dim = Py_NewRef(state->dim);
    return (PyObject *)self;
}

static int
seam_traverse(Seam *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->views);
    Py_VISIT(self->owner);
    return 0;
}

static int
seam_clear(Seam *self)
{
    Py_CLEAR(self->views);
    Py_CLEAR(self->owner);
    return 0;
}

static void
seam_dealloc(Seam *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    seam_clear(self);
    Py_CLEAR(self->dim);
    type->tp_free(self);
    Py_DECREF(type);
}

/* 1 if an argument is the expected integer; an error while reading it counts as another value. */
static int
is_integer(PyObject *object, long expected)
{
    if (!PyLong_CheckExact(object)) {
        return 0;
    }
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return value == expected;
}

static PyObject *
refuse(Seam *self, const char *method, PyObject *expected, PyObject *const *args, Py_ssize_t count)
{
    ModuleState *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL || expected == NULL) {
        return NULL;
    }
    PyObject *seen = PyTuple_New(count);
    if (seen == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(seen, i, Py_NewRef(args[i]));
    }
    PyObject *result = PyObject_CallFunction(state->refuse_seam_call, "OsOO", self->owner, method, expected, seen);
    Py_DECREF(seen);
    if (result != NULL) {
        Py_DECREF(result);
        PyErr_SetString(PyExc_SystemError, "refuse_seam_call: seen a return; expected an exception");
    }
    return NULL;
}

static PyObject *
seam_transpose(Seam *self, PyObject *const *args, Py_ssize_t count, PyObject *keyword_names)
{
    if (count == 2 && keyword_names == NULL && is_integer(args[0], 1) && is_integer(args[1], 2)) {
        return Py_NewRef(self);
    }
    if (keyword_names != NULL) {
        count += PyTuple_GET_SIZE(keyword_names);
    }
    PyObject *expected = PyUnicode_FromString("(1, 2)");
    PyObject *result = refuse(self, "transpose", expected, args, count);
    Py_XDECREF(expected);
    return result;
}

static PyObject *
seam_split(Seam *self, PyObject *const *args, Py_ssize_t count, PyObject *keyword_names)
{
    Py_ssize_t keywords = keyword_names == NULL ? 0 : PyTuple_GET_SIZE(keyword_names);
    if (count == 1 && keywords == 1 && is_integer(args[0], (long)self->head_size) && is_integer(args[1], -1)) {
        PyObject *name = PyTuple_GET_ITEM(keyword_names, 0);
        int same = name == self->dim ? 1 : PyUnicode_Compare(name, self->dim) == 0;
        if (PyErr_Occurred()) {
            return NULL;
        }
        if (same && self->views != NULL) {
            return Py_NewRef(self->views);
        }
    }
    if (self->views == NULL) {
        PyErr_SetString(PyExc_AttributeError, "views");
        return NULL;
    }
    PyObject *expected = PyUnicode_FromFormat("(%zd, dim=-1)", self->head_size);
    PyObject *result = refuse(self, "split", expected, args, count + keywords);
    Py_XDECREF(expected);
    return result;
}

static PyMethodDef seam_methods[] = {
    {"transpose", (PyCFunction)(void (*)(void))seam_transpose, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Return the seam itself for transpose(1, 2), else raise ContractError.")},
    {"split", (PyCFunction)(void (*)(void))seam_split, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Return the stored aliases for split(head_size, dim=-1), else raise ContractError.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef seam_members[] = {
    {"views", T_OBJECT_EX, offsetof(Seam, views), 0, PyDoc_STR("Key and value alias.")},
    {"owner", T_OBJECT_EX, offsetof(Seam, owner), READONLY, PyDoc_STR("The layer, for messages.")},
    {"head_size", T_PYSSIZET, offsetof(Seam, head_size), READONLY, PyDoc_STR("The only accepted split width.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot seam_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Answers cache.transpose(1, 2).split(head_size, dim=-1) with two stored aliases.")},
    {Py_tp_new, seam_new},
    {Py_tp_traverse, seam_traverse},
    {Py_tp_clear, seam_clear},
    {Py_tp_dealloc, seam_dealloc},
    {Py_tp_methods, seam_methods},
    {Py_tp_members, seam_members},
    {0, NULL},
};

static PyType_Spec seam_spec = {
    .name = "laguna_kv._contract.Seam",
    .basicsize = sizeof(Seam),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = seam_slots,
};

/* ---- Contract ----------------------------------------------------------------------------------------------- */

/* Fields that the tensors of all layers mostly share. Equal ones are kept once, in the bytes of a Python object, so
 * that one layer's use finds them in the processor's caches after another's. They stay for the life of the process:
 * there are few. */
typedef struct {
    int64_t storage_bytes;
    DLDevice device;
    DLDataType dtype;
    int32_t unused; /* zero, so that equal geometries are equal in every byte */
    int64_t shape[DIMENSIONS];
    int64_t strides[DIMENSIONS];
} Geometry;

/* torch's words for the same fields inside a tensor's C++ object (c10/core/TensorImpl.h) and a storage's
 * (c10/core/StorageImpl.h); as in torch 2.11 to 2.14, and read only if layout.py has found them to agree with torch. */
typedef struct {
    int64_t dimensions;
    int64_t shape[INLINE_DIMENSIONS];
    int64_t strides[INLINE_DIMENSIONS];
    int64_t storage_offset;
    int64_t elements;
    int64_t kind; /* data type, device, and the owner of the geometry */
} Words;

typedef struct {
    const void *head[2];
    const void *data;
    const void *context[2];
    int64_t device;
    int64_t bytes;
    int64_t flags; /* one makes torch copy or refuse when asked for the address */
} StorageWords;

/* A tensor's memory at its last successful check. */
typedef struct {
    PyObject *tensor; /* borrowed from the signature */
    const void *binding[BINDING]; /* the Python object's words after its head; one leads to the C++ object */
    const StorageWords *const *storage; /* inside the C++ object, kept alive by the signature's handle */
    const Words *words;
    const Words *known; /* in the next field */
    PyObject *bytes;
} Image;

typedef struct {
    PyObject *tensor; /* strong: its identity cannot be reused while we hold it */
    void *handle;     /* the same tensor for the shim; ours to delete */
    const int64_t *shape_address; /* inside the C++ object, for up to five dimensions (c10/core/impl/SizesAndStrides.h) */
    void *data;
    uint64_t byte_offset;
    int64_t storage_offset;
    const Geometry *geometry; /* in the next field */
    PyObject *bytes;
} Signature;

/* Cache lines to fetch some time before they are read. */
typedef struct {
    const void *owner; /* their contract; compared and never followed, because it may be gone */
    int count;
    const char *lines[MOST_LINES];
} Ahead;

/* The fields read by a use come first and lie together. */
typedef struct Contract {
    PyObject_HEAD
    int distinct;   /* the source and each alias object once */
    int has_images; /* of all tensors, and of their shared storage */
    Seam *raw;
    Seam *canonical;
    const StorageWords *storage;
    const void *data;
    int64_t storage_bytes;
    int64_t storage_flags;
    const void *pairs[2]; /* addresses of the aliases' tuples, for fetching only */
    ModuleState *state;
    PyObject *held[TENSORS]; /* source, raw key, raw value, canonical key, canonical value */
    unsigned long long forward_hits;
    unsigned long long update_hits;
    Image images[TENSORS];
    Ahead next; /* lines read by the contract used after this one */
    Signature signatures[TENSORS];
    PyObject *module; /* strong, and released last: the state is its memory */
    PyObject *owner;
    PyObject *explain;
} Contract;

/* Make the shim's handle of a tensor. Returns NULL with an exception.
 *
 * The handle shares the tensor's implementation, so it shows changes in place. torch.utils.swap_tensors refuses to put
 * another implementation under a tensor with a second owner; if torch's own function does so behind its back, the
 * address of the shape changes, and the first implementation lives, so that its address is not used again. The
 * collector does not see behind such an owner either: a tensor that refers to its contract lives until the contract is
 * dropped. */
static void *
make_handle(const ModuleState *state, PyObject *tensor)
{
    PyObject *capsule = PyObject_CallOneArg(state->make_handle, tensor);
    void *handle = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(capsule);
    return handle;
}

/* The one object with these bytes. Returns a new reference, or NULL with an exception. */
static PyObject *
share(const ModuleState *state, const void *start, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(start, (Py_ssize_t)size);
    PyObject *shared = bytes == NULL ? NULL : PyDict_SetDefault(state->geometries, bytes, bytes);
    Py_XINCREF(shared);
    Py_XDECREF(bytes);
    return shared;
}

/* Record a tensor as it is. Returns 0, or -1 with an exception set. */
static int
record(Contract *self, PyObject *tensor)
{
    Signature *signature = &self->signatures[self->distinct];
    DLTensor now;
    Geometry geometry = {0};
    void *handle = make_handle(self->state, tensor);
    if (handle == NULL) {
        return -1;
    }
    signature->handle = handle;
    signature->tensor = Py_NewRef(tensor);
    self->distinct++; /* from here on it is released with the contract */
    if (self->state->api->dltensor_from_py_object_no_sync(tensor, &now) != 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "Contract: seen a tensor without a DLPack description; expected one");
        }
        return -1;
    }
    if (now.ndim != DIMENSIONS || now.shape == NULL || now.strides == NULL) {
        PyErr_Format(PyExc_ValueError, "Contract: seen a tensor of %d dimensions; expected %d, with strides",
                     (int)now.ndim, (int)DIMENSIONS);
        return -1;
    }
    if (self->state->shim.get_storage_offset(handle, &signature->storage_offset) != 0
        || self->state->shim.get_storage_size(handle, &geometry.storage_bytes) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "Contract: seen a tensor without a storage; expected one");
        return -1;
    }
    signature->data = now.data;
    signature->byte_offset = now.byte_offset;
    signature->shape_address = now.shape;
    geometry.device = now.device;
    geometry.dtype = now.dtype;
    memcpy(geometry.shape, now.shape, sizeof geometry.shape);
    memcpy(geometry.strides, now.strides, sizeof geometry.strides);
    signature->bytes = share(self->state, &geometry, sizeof geometry);
    if (signature->bytes == NULL) {
        return -1;
    }
    signature->geometry = (const Geometry *)PyBytes_AS_STRING(signature->bytes);
    return 0;
}

/* Fetch a cache line. A hint: absent or freed memory does no harm. */
static inline __attribute__((always_inline)) void
fetch(Ahead *Py_UNUSED(none), const char *address)
{
    __builtin_prefetch(address);
}

/* Note a cache line, to be fetched later. */
static inline __attribute__((always_inline)) void
note(Ahead *ahead, const char *address)
{
    const char *line = address - (uintptr_t)address % LINE;
    for (int i = 0; i < ahead->count; i++) {
        if (ahead->lines[i] == line) {
            return;
        }
    }
    if (ahead->count < MOST_LINES) {
        ahead->lines[ahead->count++] = line;
    }
}

/* Always inline, like those below: GCC takes a function that only fetches for one without effect, and drops its call.
 */
static inline __attribute__((always_inline)) void
each_line_of(const void *start, size_t size, void (*visit)(Ahead *, const char *), Ahead *ahead)
{
    const char *address = start;
    for (size_t offset = 0; offset < size; offset += LINE) {
        visit(ahead, address + offset);
    }
    visit(ahead, address + size - 1);
}

/* Visit every line that a use of a contract reads.
 *
 * Between two uses of a layer, launches and all other layers run, so nearly all lines have left the processor's caches.
 * Without this the comparison would wait for them one by one, each found through the one before. */
static inline __attribute__((always_inline)) void
each_line(const Contract *read, void (*visit)(Ahead *, const char *), Ahead *ahead)
{
    each_line_of(read, offsetof(Contract, images) + (size_t)read->distinct * sizeof(Image), visit, ahead);
    each_line_of(&read->next, offsetof(Ahead, lines) + (size_t)read->next.count * sizeof(char *), visit, ahead);
    for (int i = 0; i < 2; i++) {
        each_line_of(i == 0 ? read->raw : read->canonical, sizeof(Seam), visit, ahead);
        each_line_of(read->pairs[i], sizeof(PyTupleObject) + sizeof(PyObject *), visit, ahead);
    }
    for (int i = 0; read->has_images && i < read->distinct; i++) {
        const Image *image = &read->images[i];
        const char *end = (const char *)(image->words + 1);
        each_line_of(image->tensor, sizeof(PyObject) + sizeof image->binding, visit, ahead);
        each_line_of(image->storage, (size_t)(end - (const char *)image->storage), visit, ahead);
    }
    if (read->has_images) {
        each_line_of(read->storage, sizeof *read->storage, visit, ahead);
    }
}

/* Fetch the lines of this use, unless the use before did. */
static inline void
fetch_own(const Contract *self)
{
    const Contract *before = self->state->latest;
    if (before != self && (before == NULL || before->next.owner != self)) {
        each_line(self, fetch, NULL);
    }
}

/* Note the lines of this use in the contract used before it: layers are used in one order. */
static void
come_after(Contract *self)
{
    Contract *before = self->state->latest;
    if (before != NULL && before != self && before->next.owner != self) {
        before->next.owner = self;
        before->next.count = 0;
        each_line(self, note, &before->next);
    }
    self->state->latest = self;
}

/* Fetch the lines of the contract used after this one: the work between gives it time. */
static inline __attribute__((always_inline)) void
fetch_next(const Contract *self)
{
    for (int i = 0; i < self->next.count; i++) {
        fetch(NULL, self->next.lines[i]);
    }
}

/* 1 if a tensor is as recorded; an error while reading it counts as drift. */
static int
holds(const Contract *self, const Signature *signature)
{
    const Geometry *geometry = signature->geometry;
    DLTensor now;
    int64_t storage_offset, storage_bytes;
    if (self->state->api->dltensor_from_py_object_no_sync(signature->tensor, &now) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (now.data != signature->data || now.byte_offset != signature->byte_offset
        || now.ndim != DIMENSIONS || now.shape != signature->shape_address || now.strides == NULL
        || now.device.device_type != geometry->device.device_type
        || now.device.device_id != geometry->device.device_id || now.dtype.code != geometry->dtype.code
        || now.dtype.bits != geometry->dtype.bits || now.dtype.lanes != geometry->dtype.lanes
        || memcmp(now.shape, geometry->shape, sizeof geometry->shape) != 0
        || memcmp(now.strides, geometry->strides, sizeof geometry->strides) != 0) {
        return 0;
    }
    return self->state->shim.get_storage_offset(signature->handle, &storage_offset) == 0
           && storage_offset == signature->storage_offset
           && self->state->shim.get_storage_size(signature->handle, &storage_bytes) == 0
           && storage_bytes == geometry->storage_bytes;
}

static inline int
are_same(const int64_t *words, const int64_t *others, size_t count)
{
    int64_t difference = 0;
    for (size_t i = 0; i < count; i++) {
        difference |= words[i] ^ others[i];
    }
    return difference == 0;
}

/* 1 if torch would read the same of every tensor as when the images were taken. The storage is read last: the tensors
 * are known to have it still. */
static int
match_images(const Contract *self)
{
    for (int i = 0; i < self->distinct; i++) {
        const Image *image = &self->images[i];
        const Words *now = image->words, *known = image->known;
        const void *const *binding = (const void *const *)(image->tensor + 1);
        if (binding[0] != image->binding[0] || binding[1] != image->binding[1] || *image->storage != self->storage
            || now->dimensions != known->dimensions || !are_same(now->shape, known->shape, DIMENSIONS)
            || !are_same(now->strides, known->strides, DIMENSIONS) || now->storage_offset != known->storage_offset
            || now->kind != known->kind) {
            return 0;
        }
    }
    return self->storage->data == self->data && self->storage->bytes == self->storage_bytes
           && self->storage->flags == self->storage_flags;
}

/* Find a tensor's words, and return their distance from its C++ object, of which the handle is another owner. */
static Py_ssize_t
find_words(PyObject *tensor, const void *handle, const int64_t *shape_address, Image *image)
{
    const char *object = *(const char *const *)handle;
    image->tensor = tensor;
    memcpy(image->binding, tensor + 1, sizeof image->binding);
    image->storage = (const StorageWords *const *)(object + sizeof(((StorageWords *)NULL)->head)); /* the same head */
    image->words = (const Words *)((const char *)shape_address - offsetof(Words, shape));
    return (const char *)image->words - object;
}

/* Take a tensor's image. Returns 0 without memory for it, if the tensor has a storage of its own, or if its words are
 * not its own: a tensor that stands for another (at::FunctionalTensorWrapper) shows the shape of that one, which may
 * go. */
static int
take_image(Contract *self, int i)
{
    const Signature *signature = &self->signatures[i];
    Image *image = &self->images[i];
    if (find_words(signature->tensor, signature->handle, signature->shape_address, image) != self->state->words_at) {
        return 0;
    }
    Words words = *image->words;
    words.elements = 0; /* follows from the shape */
    for (int j = DIMENSIONS; j < INLINE_DIMENSIONS; j++) {
        words.shape[j] = words.strides[j] = 0; /* torch leaves them uninitialised */
    }
    Py_XSETREF(image->bytes, share(self->state, &words, sizeof words));
    if (image->bytes == NULL) {
        PyErr_Clear();
        return 0;
    }
    image->known = (const Words *)PyBytes_AS_STRING(image->bytes);
    return *image->storage == *self->images[0].storage;
}

/* Take the images of all tensors, just found to hold. Without images every use reads everything. */
static void
take_images(Contract *self)
{
    self->has_images = self->state->words_at != 0;
    for (int i = 0; self->has_images && i < self->distinct; i++) {
        self->has_images = take_image(self, i);
    }
    if (self->has_images) {
        self->storage = *self->images[0].storage;
        self->data = self->storage->data;
        self->storage_bytes = self->storage->bytes;
        self->storage_flags = self->storage->flags;
    }
}

/* 1 if all tensors are as recorded. */
static int
all_hold(Contract *self)
{
    if (self->has_images && match_images(self)) {
        return 1;
    }
    for (int i = 0; i < self->distinct; i++) {
        if (!holds(self, &self->signatures[i])) {
            return 0;
        }
    }
    take_images(self);
    return 1;
}

/* 1 if a seam still hands out its first aliases, by identity. */
static int
hands_out(const Seam *seam, PyObject *const *held)
{
    PyObject *views = seam->views;
    return views != NULL && PyTuple_CheckExact(views) && PyTuple_GET_SIZE(views) == 2
           && PyTuple_GET_ITEM(views, 0) == held[0] && PyTuple_GET_ITEM(views, 1) == held[1];
}

/* Returns 0 if the whole contract holds for this cache, or -1 with an exception set. */
static int
check(Contract *self, PyObject *source)
{
    fetch_own(self);
    if (source == self->held[0] && hands_out(self->raw, self->held + 1) && hands_out(self->canonical, self->held + 3)
        && all_hold(self)) {
        come_after(self);
        return 0;
    }
    PyObject *result = PyObject_CallOneArg(self->explain, source);
    if (result != NULL) {
        Py_DECREF(result);
        ModuleState *state = PyType_GetModuleState(Py_TYPE(self));
        result = state == NULL ? NULL : PyObject_CallOneArg(state->refuse_disagreement, self->owner);
        if (result != NULL) {
            Py_DECREF(result);
            PyErr_SetString(PyExc_SystemError, "refuse_disagreement: seen a return; expected an exception");
        }
    }
    return -1;
}

static PyObject *
contract_forward(Contract *self, PyObject *source)
{
    if (check(self, source) < 0) {
        Py_CLEAR(self->state->checked[0]); /* of an earlier, interrupted use */
        Py_CLEAR(self->state->checked[1]);
        return NULL;
    }
    self->forward_hits++;
    self->state->all_hits++;
    fetch_next(self);
    for (int i = 0; i < 2; i++) {
        Py_XSETREF(self->state->checked[i], Py_NewRef(self->held[3 + i]));
    }
    return Py_NewRef(self->canonical);
}

static PyObject *
contract_update(Contract *self, PyObject *source)
{
    if (check(self, source) < 0) {
        return NULL;
    }
    self->update_hits++;
    self->state->all_hits++;
    return Py_NewRef(self->raw);
}

static int
contract_traverse(Contract *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->module);
    Py_VISIT(self->owner);
    Py_VISIT(self->explain);
    Py_VISIT(self->raw);
    Py_VISIT(self->canonical);
    for (int i = 0; i < TENSORS; i++) {
        Py_VISIT(self->held[i]);
    }
    for (int i = 0; i < self->distinct; i++) {
        Py_VISIT(self->signatures[i].tensor);
    }
    return 0;
}

/* The collector breaks cycles at the callable only: a finalizer in the same cycle could still use the contract, which
 * then needs its tensors. Drift after this raises TypeError. */
static int
contract_clear(Contract *self)
{
    PyObject *explain = self->explain;
    self->explain = Py_NewRef(Py_None);
    Py_XDECREF(explain);
    return 0;
}

static void
contract_dealloc(Contract *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->state->latest == self) {
        self->state->latest = NULL;
    }
    for (int i = 0; i < 2; i++) { /* an interrupted use leaves its aliases */
        if (self->state->checked[i] == self->held[3 + i]) {
            Py_CLEAR(self->state->checked[i]);
        }
    }
    Py_CLEAR(self->explain);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->raw);
    Py_CLEAR(self->canonical);
    for (int i = 0; i < TENSORS; i++) {
        Py_CLEAR(self->held[i]);
    }
    for (int i = 0; i < self->distinct; i++) {
        (void)self->state->shim.delete_tensor(self->signatures[i].handle);
        Py_CLEAR(self->signatures[i].tensor);
        Py_CLEAR(self->signatures[i].bytes);
        Py_CLEAR(self->images[i].bytes);
    }
    Py_CLEAR(self->module);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Record each distinct tensor. Returns 0, or -1 with an exception set. */
static int
record_all(Contract *self)
{
    for (int i = 0; i < TENSORS; i++) {
        int known = 0;
        for (int j = 0; j < self->distinct; j++) {
            known |= self->signatures[j].tensor == self->held[i];
        }
        if (!known && record(self, self->held[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
contract_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Contract: seen keyword arguments; expected none");
        return NULL;
    }
    PyObject *source, *raw, *canonical, *explain, *owner;
    if (!PyArg_ParseTuple(args, "OO!O!OU:Contract", &source, state->seam_type, &raw, state->seam_type, &canonical,
                          &explain, &owner)) {
        return NULL;
    }
    PyObject *pairs[2] = {((Seam *)raw)->views, ((Seam *)canonical)->views};
    for (int i = 0; i < 2; i++) {
        if (pairs[i] == NULL || !PyTuple_CheckExact(pairs[i]) || PyTuple_GET_SIZE(pairs[i]) != 2) {
            PyErr_SetString(PyExc_ValueError, "Contract: seen a seam without a pair; expected a key and a value alias");
            return NULL;
        }
    }
    Contract *self = (Contract *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->module = Py_NewRef(PyType_GetModule(type));
    self->state = state;
    self->owner = Py_NewRef(owner);
    self->explain = Py_NewRef(explain);
    self->raw = (Seam *)Py_NewRef(raw);
    self->canonical = (Seam *)Py_NewRef(canonical);
    self->held[0] = Py_NewRef(source);
    for (int i = 0; i < VIEWS; i++) {
        self->held[1 + i] = Py_NewRef(PyTuple_GET_ITEM(pairs[i / 2], i % 2));
    }
    self->pairs[0] = pairs[0];
    self->pairs[1] = pairs[1];
    if (record_all(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *
contract_all_hits(PyObject *type, PyObject *Py_UNUSED(ignored))
{
    ModuleState *state = PyType_GetModuleState((PyTypeObject *)type);
    return state == NULL ? NULL : PyLong_FromUnsignedLongLong(state->all_hits);
}

static PyMethodDef contract_methods[] = {
    {"all_hits", contract_all_hits, METH_NOARGS | METH_CLASS,
     PyDoc_STR("Successful uses of both kinds by all contracts of this process so far.")},
    {"forward", (PyCFunction)contract_forward, METH_O,
     PyDoc_STR("Return the canonical seam if everything holds for this cache, else raise ContractError.")},
    {"update", (PyCFunction)contract_update, METH_O,
     PyDoc_STR("Return the raw seam if everything holds for this cache, else raise ContractError.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef contract_members[] = {
    {"raw", T_OBJECT_EX, offsetof(Contract, raw), READONLY, PyDoc_STR("The raw seam.")},
    {"canonical", T_OBJECT_EX, offsetof(Contract, canonical), READONLY, PyDoc_STR("The canonical seam.")},
    {"forward_hits", T_ULONGLONG, offsetof(Contract, forward_hits), READONLY,
     PyDoc_STR("Successful uses by the attention forward.")},
    {"update_hits", T_ULONGLONG, offsetof(Contract, update_hits), READONLY,
     PyDoc_STR("Successful uses by the cache update.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot contract_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("One cache, its aliases, and their recorded fields.")},
    {Py_tp_new, contract_new},
    {Py_tp_traverse, contract_traverse},
    {Py_tp_clear, contract_clear},
    {Py_tp_dealloc, contract_dealloc},
    {Py_tp_methods, contract_methods},
    {Py_tp_members, contract_members},
    {0, NULL},
};

static PyType_Spec contract_spec = {
    .name = "laguna_kv._contract.Contract",
    .basicsize = sizeof(Contract),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = contract_slots,
};

/* ---- Canonicalize ------------------------------------------------------------------------------------------- */

/* Wraps vLLM's canonicalisation helper. The aliases of the canonical seam were found canonical when they were built,
 * and unchanged when the contract was used; so each is its own canonical form, once after each use. Every other tensor,
 * and the same alias asked for again, goes to the helper. With two threads in turn the helper is at most called
 * needlessly: the comparison is by identity. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *module; /* strong, and released last: the state is its memory */
    ModuleState *state;
    PyObject *helper;
} Canonicalize;

static PyObject *
canonicalize_call(PyObject *callable, PyObject *const *args, size_t count, PyObject *keyword_names)
{
    Canonicalize *self = (Canonicalize *)callable;
    if (PyVectorcall_NARGS(count) == 1 && keyword_names == NULL) {
        for (int i = 0; i < 2; i++) {
            PyObject *alias = self->state->checked[i];
            if (alias != NULL && alias == args[0]) {
                self->state->checked[i] = NULL;
                return alias;
            }
        }
    }
    return PyObject_Vectorcall(self->helper, args, count, keyword_names);
}

static PyObject *
canonicalize_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *helper;
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Canonicalize: seen keyword arguments; expected none");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O:Canonicalize", &helper)) {
        return NULL;
    }
    if (!PyCallable_Check(helper)) {
        PyErr_SetString(PyExc_TypeError, "Canonicalize: seen no function; expected vLLM's helper");
        return NULL;
    }
    Canonicalize *self = (Canonicalize *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = canonicalize_call;
    self->module = Py_NewRef(PyType_GetModule(type));
    self->state = state;
    self->helper = Py_NewRef(helper);
    return (PyObject *)self;
}

static int
canonicalize_traverse(Canonicalize *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->module);
    Py_VISIT(self->helper);
    return 0;
}

static void
canonicalize_dealloc(Canonicalize *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->helper);
    Py_CLEAR(self->module);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef canonicalize_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Canonicalize, vectorcall), READONLY, NULL},
    {"helper", T_OBJECT_EX, offsetof(Canonicalize, helper), READONLY, PyDoc_STR("vLLM's own function.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot canonicalize_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("vLLM's canonicalisation helper, spared the aliases a contract has just checked.")},
    {Py_tp_new, canonicalize_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, canonicalize_traverse},
    {Py_tp_dealloc, canonicalize_dealloc},
    {Py_tp_members, canonicalize_members},
    {0, NULL},
};

static PyType_Spec canonicalize_spec = {
    .name = "laguna_kv._contract.Canonicalize",
    .basicsize = sizeof(Canonicalize),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = canonicalize_slots,
};

/* ---- Module ------------------------------------------------------------------------------------------------- */

/* Find torch's exchange table. Returns NULL with ImportError or AttributeError set without one. */
static const DLPackExchangeAPI *
find_exchange_api(PyObject *tensor)
{
    const DLPackExchangeAPI *api = NULL;
    PyObject *capsule = PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__");
    if (capsule != NULL) {
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    }
    if (api != NULL
        && (api->header.version.major != DLPACK_MAJOR_VERSION || api->dltensor_from_py_object_no_sync == NULL)) {
        PyErr_Format(PyExc_ImportError, "DLPack exchange API: seen version %u.%u; expected %d with unmanaged tensors",
                     api->header.version.major, api->header.version.minor, DLPACK_MAJOR_VERSION);
        api = NULL;
    }
    Py_XDECREF(capsule);
    return api;
}

/* Find the shim in torch's loaded library. Returns 0, or -1 with an exception set. */
static int
find_shim(Shim *shim)
{
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library != NULL) {
        *(void **)&shim->get_storage_offset = dlsym(library, "aoti_torch_get_storage_offset");
        *(void **)&shim->get_storage_size = dlsym(library, "aoti_torch_get_storage_size");
        *(void **)&shim->delete_tensor = dlsym(library, "aoti_torch_delete_tensor_object");
        (void)dlclose(library); /* torch itself keeps it loaded */
    }
    if (library == NULL || shim->get_storage_offset == NULL || shim->get_storage_size == NULL
        || shim->delete_tensor == NULL) {
        PyErr_SetString(PyExc_ImportError, "torch's C shim: seen none; expected it in libtorch_cpu.so");
        return -1;
    }
    return 0;
}

/* Look up the used parts of torch. Returns 0, or -1 with an exception set. */
static int
find_torch(ModuleState *state)
{
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *tensor = torch == NULL ? NULL : PyObject_GetAttrString(torch, "Tensor");
    state->api = tensor == NULL ? NULL : find_exchange_api(tensor);
    PyObject *shim = state->api == NULL ? NULL : PyImport_ImportModule("torch._C._aoti");
    state->make_handle = shim == NULL ? NULL : PyObject_GetAttrString(shim, "unsafe_alloc_void_ptr_from_tensor");
    Py_XDECREF(shim);
    Py_XDECREF(tensor);
    Py_XDECREF(torch);
    return state->make_handle == NULL ? -1 : find_shim(&state->shim);
}

/* Read a tensor's words, and those of its storage at the address torch reports, which may differ from the words'. */
static PyObject *
read_words(PyObject *module, PyObject *args)
{
    const ModuleState *state = PyModule_GetState(module);
    PyObject *tensor, *address, *result = NULL;
    DLTensor now;
    Image image;
    if (!PyArg_ParseTuple(args, "OO!:read_words", &tensor, &PyLong_Type, &address)) {
        return NULL;
    }
    const StorageWords *there = PyLong_AsVoidPtr(address);
    void *handle = there == NULL ? NULL : make_handle(state, tensor);
    if (handle != NULL) {
        const StorageWords storage = *there; /* before asking torch, which may change it */
        if (state->api->dltensor_from_py_object_no_sync(tensor, &now) == 0) {
            const Py_ssize_t at = find_words(tensor, handle, now.shape, &image);
            const Words *words = image.words;
            result = Py_BuildValue(
                "(KK)KnL(LLLL)(LLLL)LLKLL", (unsigned long long)image.binding[0], (unsigned long long)image.binding[1],
                (unsigned long long)*image.storage, at, (long long)words->dimensions, (long long)words->shape[0],
                (long long)words->shape[1], (long long)words->shape[2], (long long)words->shape[3],
                (long long)words->strides[0], (long long)words->strides[1], (long long)words->strides[2],
                (long long)words->strides[3], (long long)words->storage_offset, (long long)words->kind,
                (unsigned long long)storage.data, (long long)storage.bytes, (long long)storage.flags);
        }
        (void)state->shim.delete_tensor(handle); /* the tensor keeps its own */
    }
    if (result == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "read_words: seen no address; expected a tensor and its storage's address");
    }
    return result;
}

/* Have layout.py test torch's layout against this module's. Returns 0, or -1 with an exception set. */
static int
look_at_layout(PyObject *module, ModuleState *state)
{
    PyObject *layout = PyImport_ImportModule("laguna_kv.layout");
    PyObject *read = layout == NULL ? NULL : PyObject_GetAttrString(module, "read_words");
    PyObject *at = read == NULL ? NULL : PyObject_CallMethod(layout, "find_words", "O", read);
    state->words_at = at == NULL ? -1 : PyLong_AsSsize_t(at);
    Py_XDECREF(at);
    Py_XDECREF(read);
    Py_XDECREF(layout);
    return PyErr_Occurred() ? -1 : 0;
}

static int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

static int
module_exec(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    state->dim = PyUnicode_InternFromString("dim");
    state->geometries = PyDict_New();
    if (state->dim == NULL || state->geometries == NULL || find_torch(state) < 0) {
        return -1;
    }
    PyObject *errors = PyImport_ImportModule("laguna_kv.errors");
    if (errors == NULL) {
        return -1;
    }
    state->refuse_seam_call = PyObject_GetAttrString(errors, "refuse_seam_call");
    state->refuse_disagreement = PyObject_GetAttrString(errors, "refuse_disagreement");
    Py_DECREF(errors);
    if (state->refuse_seam_call == NULL || state->refuse_disagreement == NULL) {
        return -1;
    }
    if (add_type(module, &seam_spec, &state->seam_type) < 0) {
        return -1;
    }
    if (add_type(module, &contract_spec, &state->contract_type) < 0) {
        return -1;
    }
    if (add_type(module, &canonicalize_spec, &state->canonicalize_type) < 0) {
        return -1;
    }
    return look_at_layout(module, state);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->make_handle);
    Py_VISIT(state->dim);
    Py_VISIT(state->refuse_seam_call);
    Py_VISIT(state->refuse_disagreement);
    Py_VISIT(state->seam_type);
    Py_VISIT(state->contract_type);
    Py_VISIT(state->canonicalize_type);
    Py_VISIT(state->geometries);
    Py_VISIT(state->checked[0]);
    Py_VISIT(state->checked[1]);
    return 0;
}

static int
module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->make_handle);
    Py_CLEAR(state->dim);
    Py_CLEAR(state->refuse_seam_call);
    Py_CLEAR(state->refuse_disagreement);
    Py_CLEAR(state->seam_type);
    Py_CLEAR(state->contract_type);
    Py_CLEAR(state->canonicalize_type);
    Py_CLEAR(state->geometries);
    Py_CLEAR(state->checked[0]);
    Py_CLEAR(state->checked[1]);
    return 0;
}

static void
module_free(void *module)
{
    (void)module_clear(module);
}

static PyMethodDef module_methods[] = {
    {"read_words", read_words, METH_VARARGS,
     PyDoc_STR("Read the words of a tensor, and of the storage at this address; see layout.py.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "laguna_kv._contract",
    .m_doc = PyDoc_STR("The KV-view contract, checked natively on every use."),
    .m_size = sizeof(ModuleState),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__contract(void)
{
    return PyModuleDef_Init(&module_definition);
}
