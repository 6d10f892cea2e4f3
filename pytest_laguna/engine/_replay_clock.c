/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock of the replay profile: read after each segment of a replay, and where vLLM's attention evaluates its view
 * expression. In Python the readings, and the frames around them, would show in a replay's host time.
 *
 * If the kernel keeps CLOCK_MONOTONIC by the processor's time stamp counter, the counter itself is read: the kernel's
 * library takes longer, most of all once its code and its pages have left the caches, as they have by the next
 * segment. Ticks become nanoseconds by the replay's own readings of both clocks, before and after it.
 *
 * While a timed method runs, the ReplayClock stands in for its cache argument. vLLM's method asks it for
 * cache.transpose(1, 2).split(...) and then applies its canonicalisation to both views; each of these is handed to what
 * it belongs to, the cache tensor or the candidate's seam, so the expression is evaluated once, in its place. A forward
 * that was seen to canonicalise just these two views is handed its own transposed cache from then on: its second
 * canonicalisation ends the preparation, and the split is no call of the clock's.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

enum { MOST_ARGUMENTS = 16 };

/* Kinds of a Timed callable; a contract serves the first two as well. */
enum { FORWARD, UPDATE, CANONICAL, KINDS };

/* Methods of a contract and of a cache. */
enum { CONTRACTS_FORWARD, CONTRACTS_UPDATE, TRANSPOSE, SPLIT, NAMES };

typedef struct {
    PyObject *names[NAMES]; /* interned */
    PyTypeObject *clock_type;
} ModuleState;

static long long
now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

#if defined(__x86_64__)
enum { HAS_COUNTER = 1 };

/* The fence makes earlier loads finish first: the processor would read ahead (Intel SDM, RDTSC). */
static inline long long
read_counter(void)
{
    _mm_lfence();
    return (long long)__rdtsc();
}
#else
enum { HAS_COUNTER = 0 };

static inline long long
read_counter(void)
{
    return 0;
}
#endif

/* Ticks between two readings that count as one moment: a replay takes thousands of times as long. Reading the kernel's
 * clock takes fewer, or more where its code has left the caches; then it is read once more. */
enum { TOGETHER = 4096, MOST_TRIES = 16 };

/* Both clocks at one moment. */
typedef struct {
    long long ticks;
    long long nanoseconds;
} Moment;

/* ---- ReplayClock ---------------------------------------------------------------------------------------------- */

/* Signature of METH_FASTCALL | METH_KEYWORDS. */
typedef PyObject *(*AnyArguments)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);

/* A method of a type that nothing can change, as the C function that it is; one of the two. */
typedef struct {
    PyTypeObject *type; /* strong, and with it the function; NULL until one was asked */
    PyCFunction of_one;
    AnyArguments of_any;
} Found;

typedef struct {
    PyObject_HEAD
    PyTypeObject *tensor;  /* torch.Tensor: what a cache is where no candidate has put its seam */
    PyObject *names[NAMES];
    Found found[NAMES];
    PyObject *cache;       /* of the timed method that runs now; borrowed from its caller */
    PyObject *transposed;
    PyObject *views;       /* of this forward, until both are canonical */
    int method;            /* FORWARD or UPDATE, while cache is set */
    int uncanonical;       /* views of this forward that canonicalisation has not been asked for */
    int transposed_times;  /* by the timed method that runs now */
    int canonical_times;
    char is_regular;       /* whether that method is; see Timed */
    char recording;
    char has_counter;      /* ticks are those of the counter, and else nanoseconds */
    Moment started;
    long long begin;       /* in ticks, as all of these */
    long long end;
    long long ticks[2];    /* by FORWARD and UPDATE */
    long long calls[2];
    long long incumbent_calls;
    long long persistent_calls;
    PyObject *readings;    /* bytes: int64, in ticks; NULL where no segments were run */
} ReplayClock;

static inline long long
read_clock(const ReplayClock *self)
{
    return self->has_counter ? read_counter() : now_ns();
}

/* Read both clocks together, and again if the host took the processor away in between. Returns 0, or -1 with an
 * exception. */
static int
read_both(const ReplayClock *self, Moment *moment)
{
    if (!self->has_counter) {
        moment->ticks = moment->nanoseconds = now_ns();
        return 0;
    }
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        long long before = read_counter();
        moment->nanoseconds = now_ns();
        long long between = read_counter() - before;
        moment->ticks = before + between / 2;
        if (between >= 0 && between < TOGETHER) {
            return 0;
        }
    }
    PyErr_Format(PyExc_RuntimeError, "the counter and CLOCK_MONOTONIC: expected both read within %d ticks, seen more "
                 "%d times", (int)TOGETHER, (int)MOST_TRIES);
    return -1;
}

static PyObject *
clock_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"tensor", "has_counter", NULL};
    PyTypeObject *tensor;
    int has_counter;
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, keywords, "O!p:ReplayClock", names, &PyType_Type, &tensor,
                                                      &has_counter)) {
        return NULL;
    }
    if (has_counter && !HAS_COUNTER) {
        PyErr_SetString(PyExc_ValueError, "ReplayClock: expected no counter on this processor");
        return NULL;
    }
    ReplayClock *self = (ReplayClock *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->tensor = (PyTypeObject *)Py_NewRef(tensor);
    self->has_counter = (char)has_counter;
    for (int i = 0; i < NAMES; i++) {
        self->names[i] = Py_NewRef(state->names[i]);
    }
    return (PyObject *)self;
}

static int
clock_traverse(ReplayClock *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->tensor);
    for (int i = 0; i < NAMES; i++) {
        Py_VISIT(self->found[i].type);
    }
    Py_VISIT(self->transposed);
    Py_VISIT(self->views);
    return 0;
}

static int
clock_clear(ReplayClock *self)
{
    Py_CLEAR(self->transposed);
    Py_CLEAR(self->views);
    return 0;
}

static void
clock_dealloc(ReplayClock *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)clock_clear(self);
    Py_CLEAR(self->tensor);
    Py_CLEAR(self->readings);
    for (int i = 0; i < NAMES; i++) {
        Py_CLEAR(self->names[i]);
        Py_CLEAR(self->found[i].type);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
clock_start(ReplayClock *self, PyObject *Py_UNUSED(ignored))
{
    memset(self->calls, 0, sizeof self->calls);
    memset(self->ticks, 0, sizeof self->ticks);
    self->incumbent_calls = self->persistent_calls = 0;
    Py_CLEAR(self->readings);
    self->recording = read_both(self, &self->started) == 0;
    if (!self->recording) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
clock_stop(ReplayClock *self, PyObject *Py_UNUSED(ignored))
{
    Moment stopped;
    if (!self->recording) {
        PyErr_SetString(PyExc_RuntimeError, "stop: expected a clock that was started");
        return NULL;
    }
    if (read_both(self, &stopped) < 0) {
        return NULL;
    }
    if (stopped.ticks <= self->started.ticks) {
        PyErr_Format(PyExc_RuntimeError, "stop: expected a clock that rises, seen %lld after %lld", stopped.ticks,
                     self->started.ticks);
        return NULL;
    }
    self->recording = 0;
    PyObject *readings = self->readings == NULL ? PyBytes_FromStringAndSize(NULL, 0) : self->readings;
    self->readings = NULL;
    return Py_BuildValue("((LL)(LL))(LLLLLL)N", self->started.ticks, self->started.nanoseconds, stopped.ticks,
                         stopped.nanoseconds, self->calls[FORWARD], self->ticks[FORWARD], self->calls[UPDATE],
                         self->ticks[UPDATE], self->incumbent_calls, self->persistent_calls, readings);
}

static PyObject *
clock_read(ReplayClock *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(read_clock(self));
}

/* Call each segment of a replay, and read the clock after it: one ends where the next begins. None is called unless they
 * are the captured ones. */
static PyObject *
clock_run_segments(ReplayClock *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyTuple_CheckExact(args[0]) || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "run_segments: expected the captured segments as a tuple, then all as a list");
        return NULL;
    }
    PyTupleObject *captured = (PyTupleObject *)args[0];
    Py_ssize_t count = Py_SIZE(captured);
    for (Py_ssize_t i = 0; i < count || i < PyList_GET_SIZE(args[1]); i++) {
        if (i >= count || i >= PyList_GET_SIZE(args[1]) || captured->ob_item[i] != PyList_GET_ITEM(args[1], i)) {
            Py_RETURN_FALSE;
        }
    }
    PyObject *readings = PyBytes_FromStringAndSize(NULL, (count + 1) * (Py_ssize_t)sizeof(int64_t));
    if (readings == NULL) {
        return NULL;
    }
    int64_t *reading = (int64_t *)PyBytes_AS_STRING(readings);
    *reading = read_clock(self);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *returned = PyObject_CallNoArgs(captured->ob_item[i]);
        if (returned == NULL) {
            Py_DECREF(readings);
            return NULL;
        }
        Py_DECREF(returned);
        *++reading = read_clock(self);
    }
    Py_XSETREF(self->readings, readings);
    Py_RETURN_TRUE;
}

/* Keep an object's method where every object of its type has the same for ever. Returns 0, or -1 with an exception. */
static int
find(ReplayClock *self, int name, PyTypeObject *type)
{
    if (!PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE) || type->tp_dictoffset != 0
        || type->tp_getattro != PyObject_GenericGetAttr) {
        return 0;
    }
    PyObject *method = PyObject_GetAttr((PyObject *)type, self->names[name]);
    if (method == NULL) {
        return -1;
    }
    int of_c = Py_IS_TYPE(method, &PyMethodDescr_Type);
    PyMethodDef *definition = of_c ? ((PyMethodDescrObject *)method)->d_method : NULL;
    int flags = definition == NULL ? 0 : definition->ml_flags;
    if (flags == METH_O || flags == (METH_FASTCALL | METH_KEYWORDS)) {
        Found *found = &self->found[name];
        found->of_one = flags == METH_O ? definition->ml_meth : NULL;
        found->of_any = flags == METH_O ? NULL : (AnyArguments)(void (*)(void))definition->ml_meth;
        Py_XSETREF(found->type, (PyTypeObject *)Py_NewRef(type));
    }
    Py_DECREF(method);
    return 0;
}

/* Look an object's method up, and call it. */
static PyObject *
call_method(PyObject *object, PyObject *name, PyObject *const *args, Py_ssize_t count, PyObject *keyword_names)
{
    PyObject *all[MOST_ARGUMENTS];
    Py_ssize_t given = count + (keyword_names == NULL ? 0 : PyTuple_GET_SIZE(keyword_names));
    if (given >= MOST_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "%U: expected fewer than %d arguments, seen %zd", name, (int)MOST_ARGUMENTS,
                     given);
        return NULL;
    }
    all[0] = object;
    memcpy(all + 1, args, (size_t)given * sizeof *all);
    return PyObject_VectorcallMethod(name, all, (size_t)count + 1, keyword_names);
}

/* Call an object's method with the arguments given to the clock in its place.
 *
 * The interpreter keeps what it has found where a method is called. The clock does so for types that cannot change,
 * which are the candidate's; a tensor's is searched anew. */
static PyObject *
ask(ReplayClock *self, int name, PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keyword_names)
{
    if (object == NULL) {
        PyErr_Format(PyExc_RuntimeError, "%U: expected the view expression within a timed method, seen outside of it",
                     self->names[name]);
        return NULL;
    }
    const Found *found = &self->found[name];
    if (found->type == Py_TYPE(object) && found->of_any != NULL) {
        return found->of_any(object, args, count, keyword_names);
    }
    if (found->type == Py_TYPE(object) && count == 1 && keyword_names == NULL) {
        return found->of_one(object, args[0]);
    }
    if (found->type != Py_TYPE(object) && find(self, name, Py_TYPE(object)) < 0) {
        return NULL;
    }
    return call_method(object, self->names[name], args, count, keyword_names);
}

static PyObject *
clock_transpose(ReplayClock *self, PyObject *const *args, Py_ssize_t count, PyObject *keyword_names)
{
    self->begin = read_clock(self);
    self->transposed_times++;
    PyObject *transposed = ask(self, TRANSPOSE, self->cache, args, count, keyword_names);
    if (transposed == NULL || self->is_regular) {
        return transposed;
    }
    Py_XSETREF(self->transposed, transposed);
    return Py_NewRef(self);
}

/* Count and time one preparation, from begin to end. */
static void
prepared(ReplayClock *self)
{
    self->ticks[self->method] += self->end - self->begin;
    self->calls[self->method]++;
    self->incumbent_calls += PyObject_TypeCheck(self->cache, self->tensor);
}

static PyObject *
clock_split(ReplayClock *self, PyObject *const *args, Py_ssize_t count, PyObject *keyword_names)
{
    PyObject *transposed = self->transposed; /* ours: what it answers may ask for another */
    self->transposed = NULL;
    PyObject *views = ask(self, SPLIT, transposed, args, count, keyword_names);
    if (views != NULL && self->method == UPDATE) {
        self->end = read_clock(self);
        prepared(self);
    } else if (views != NULL && PyTuple_CheckExact(views) && PyTuple_GET_SIZE(views) == 2) {
        Py_XSETREF(self->views, Py_NewRef(views));
        self->uncanonical = 2;
    }
    Py_XDECREF(transposed);
    return views;
}

static PyMethodDef clock_methods[] = {
    {"start", (PyCFunction)clock_start, METH_NOARGS, PyDoc_STR("Start counting from zero.")},
    {"stop", (PyCFunction)clock_stop, METH_NOARGS,
     PyDoc_STR("Ticks and nanoseconds at the start and now; calls and ticks of the forward and of the update, incumbent "
               "and persistent calls; the segments' readings, as int64 ticks.")},
    {"read", (PyCFunction)clock_read, METH_NOARGS, PyDoc_STR("Ticks.")},
    {"run_segments", (PyCFunction)(void (*)(void))clock_run_segments, METH_FASTCALL,
     PyDoc_STR("Call each, with a reading before the first and after each; False where they are not those captured.")},
    {"transpose", (PyCFunction)(void (*)(void))clock_transpose, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("The clock itself, after the cache has been asked; what the cache answers, in a regular forward.")},
    {"split", (PyCFunction)(void (*)(void))clock_split, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("What the transposed cache answers.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot clock_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Times view preparations; stands in for the cache while a timed method runs.")},
    {Py_tp_new, clock_new},
    {Py_tp_traverse, clock_traverse},
    {Py_tp_clear, clock_clear},
    {Py_tp_dealloc, clock_dealloc},
    {Py_tp_methods, clock_methods},
    {0, NULL},
};

static PyType_Spec clock_spec = {
    .name = "pytest_laguna.engine._replay_clock.ReplayClock",
    .basicsize = sizeof(ReplayClock),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = clock_slots,
};

/* ---- Timed -------------------------------------------------------------------------------------------------- */

/* A callable of vLLM's, in whose place this stands; as it is while nothing is recorded. A forward is regular when it has
 * evaluated its expression once and canonicalised both of these views and nothing else. A run of it that canonicalises
 * another number is not counted, and ends that. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    ReplayClock *clock;
    PyObject *callable;
    Py_ssize_t position; /* of the cache among a method's arguments, self included */
    int kind;
    char is_regular;
} Timed;

/* A forward has ended that reached its views; the preparation of a regular one is counted now. */
static void
settle(Timed *self, ReplayClock *clock)
{
    int as_before = clock->transposed_times == 1 && clock->canonical_times == 2;
    int own = clock->is_regular || (clock->views != NULL && clock->uncanonical == 0);
    if (clock->is_regular && as_before) {
        prepared(clock);
    }
    self->is_regular = own && as_before;
}

/* Run a method of vLLM's with the clock in place of its cache. */
static PyObject *
run_method(Timed *self, PyObject *const *args, size_t count, PyObject *keyword_names)
{
    ReplayClock *clock = self->clock;
    PyObject *all[MOST_ARGUMENTS];
    Py_ssize_t positional = PyVectorcall_NARGS(count);
    Py_ssize_t given = positional + (keyword_names == NULL ? 0 : PyTuple_GET_SIZE(keyword_names));
    if (positional <= self->position || given > MOST_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "%R: expected the cache as positional argument %zd of at most %d, "
                     "seen %zd of %zd", self->callable, self->position, (int)MOST_ARGUMENTS, positional, given);
        return NULL;
    }
    if (clock->cache != NULL) {
        PyErr_Format(PyExc_RuntimeError, "%R: expected no timed method within another", self->callable);
        return NULL;
    }
    memcpy(all, args, (size_t)given * sizeof *all);
    all[self->position] = (PyObject *)clock;
    clock->cache = args[self->position];
    clock->method = self->kind;
    clock->is_regular = self->is_regular;
    clock->transposed_times = clock->canonical_times = 0;
    PyObject *result = PyObject_Vectorcall(self->callable, all, (size_t)positional, keyword_names);
    if (self->kind == FORWARD && clock->transposed_times > 0) {
        settle(self, clock);
    }
    clock->cache = NULL;
    clock->uncanonical = clock->is_regular = 0;
    (void)clock_clear(clock);
    return result;
}

/* Canonicalise a view; the second of a forward's own ends its preparation. */
static PyObject *
run_canonical(Timed *self, PyObject *const *args, size_t count, PyObject *keyword_names)
{
    ReplayClock *clock = self->clock;
    int left = clock->uncanonical;
    int own = left > 0 && PyVectorcall_NARGS(count) == 1 && args[0] == PyTuple_GET_ITEM(clock->views, 2 - left);
    PyObject *view = PyObject_Vectorcall(self->callable, args, count, keyword_names);
    clock->canonical_times += view != NULL;
    if (view != NULL && clock->is_regular && clock->canonical_times == 2) {
        clock->end = read_clock(clock);
    } else if (view != NULL && own && --clock->uncanonical == 0) {
        clock->end = read_clock(clock);
        prepared(clock);
    }
    return view;
}

static PyObject *
timed_call(PyObject *callable, PyObject *const *args, size_t count, PyObject *keyword_names)
{
    Timed *self = (Timed *)callable;
    if (!self->clock->recording) {
        return PyObject_Vectorcall(self->callable, args, count, keyword_names);
    }
    if (self->kind <= UPDATE) {
        return run_method(self, args, count, keyword_names);
    }
    return run_canonical(self, args, count, keyword_names);
}

/* Check that an argument is a clock of a type's module, which may be read as one. Returns 0, or -1 with an exception. */
static int
require_clock(PyTypeObject *type, PyObject *clock)
{
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL || Py_TYPE(clock) != state->clock_type) {
        PyErr_Format(PyExc_TypeError, "%s: expected a ReplayClock, seen %s", type->tp_name, Py_TYPE(clock)->tp_name);
        return -1;
    }
    return 0;
}

static PyObject *
timed_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *clock, *callable;
    Py_ssize_t position = 0;
    int kind;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Timed: expected no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOi|n:Timed", &clock, &callable, &kind, &position)) {
        return NULL;
    }
    if (require_clock(type, clock) < 0) {
        return NULL;
    }
    int known = kind >= 0 && kind < KINDS && PyCallable_Check(callable);
    if (!known || position < 0 || position >= MOST_ARGUMENTS) {
        PyErr_SetString(PyExc_ValueError, "Timed: expected a callable, what it is, and where a method has its cache");
        return NULL;
    }
    Timed *self = (Timed *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = timed_call;
    self->clock = (ReplayClock *)Py_NewRef(clock);
    self->callable = Py_NewRef(callable);
    self->kind = kind;
    self->position = position;
    return (PyObject *)self;
}

/* Bound as a function is: vLLM calls a method of its class. */
static PyObject *
timed_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(type))
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

static int
timed_traverse(Timed *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->callable);
    return 0;
}

static void
timed_dealloc(Timed *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->callable);
    Py_CLEAR(self->clock);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef timed_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Timed, vectorcall), READONLY, NULL},
    {"callable", T_OBJECT_EX, offsetof(Timed, callable), READONLY, PyDoc_STR("The wrapped object.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot timed_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Stands in the place of a callable, and has a ReplayClock time what it is part of.")},
    {Py_tp_new, timed_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, timed_get},
    {Py_tp_traverse, timed_traverse},
    {Py_tp_dealloc, timed_dealloc},
    {Py_tp_members, timed_members},
    {0, NULL},
};

static PyType_Spec timed_spec = {
    .name = "pytest_laguna.engine._replay_clock.Timed",
    .basicsize = sizeof(Timed),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL
             | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = timed_slots,
};

/* ---- TimedContract ------------------------------------------------------------------------------------------ */

/* A layer's contract, timed when asked for its seam. Small, because there is one for each layer, and a layer's own
 * memory has left the processor's caches when it is used again. */
typedef struct {
    PyObject_HEAD
    ReplayClock *clock;
    PyObject *contract;
} TimedContract;

/* Ask the contract; a check that raises is no answer. Its method is found inside the time, as the cache's is. */
static PyObject *
ask_contract(TimedContract *self, int method, PyObject *source)
{
    ReplayClock *clock = self->clock;
    long long begin = read_clock(clock);
    PyObject *handed = ask(clock, method, self->contract, &source, 1, NULL);
    if (handed != NULL && clock->recording) {
        clock->ticks[method] += read_clock(clock) - begin;
        clock->persistent_calls++;
    }
    return handed;
}

static PyObject *
timed_contract_forward(TimedContract *self, PyObject *source)
{
    return ask_contract(self, FORWARD, source);
}

static PyObject *
timed_contract_update(TimedContract *self, PyObject *source)
{
    return ask_contract(self, UPDATE, source);
}

static PyObject *
timed_contract_get(TimedContract *self, void *name)
{
    return PyObject_GetAttrString(self->contract, name);
}

static PyObject *
timed_contract_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *clock, *contract;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "TimedContract: expected no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO:TimedContract", &clock, &contract) || require_clock(type, clock) < 0) {
        return NULL;
    }
    TimedContract *self = (TimedContract *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->clock = (ReplayClock *)Py_NewRef(clock);
    self->contract = Py_NewRef(contract);
    return (PyObject *)self;
}

static int
timed_contract_traverse(TimedContract *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->contract);
    return 0;
}

static void
timed_contract_dealloc(TimedContract *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->contract);
    Py_CLEAR(self->clock);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef timed_contract_methods[] = {
    {"forward", (PyCFunction)timed_contract_forward, METH_O, PyDoc_STR("The contract's answer.")},
    {"update", (PyCFunction)timed_contract_update, METH_O, PyDoc_STR("The contract's answer.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef timed_contract_members[] = {
    {"contract", T_OBJECT_EX, offsetof(TimedContract, contract), READONLY, PyDoc_STR("The wrapped object.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef timed_contract_getters[] = {
    {"raw", (getter)timed_contract_get, NULL, PyDoc_STR("The contract's."), "raw"},
    {"canonical", (getter)timed_contract_get, NULL, PyDoc_STR("The contract's."), "canonical"},
    {"forward_hits", (getter)timed_contract_get, NULL, PyDoc_STR("The contract's."), "forward_hits"},
    {"update_hits", (getter)timed_contract_get, NULL, PyDoc_STR("The contract's."), "update_hits"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot timed_contract_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("A layer's contract, timed by a ReplayClock when it is asked for its seam.")},
    {Py_tp_new, timed_contract_new},
    {Py_tp_traverse, timed_contract_traverse},
    {Py_tp_dealloc, timed_contract_dealloc},
    {Py_tp_methods, timed_contract_methods},
    {Py_tp_members, timed_contract_members},
    {Py_tp_getset, timed_contract_getters},
    {0, NULL},
};

static PyType_Spec timed_contract_spec = {
    .name = "pytest_laguna.engine._replay_clock.TimedContract",
    .basicsize = sizeof(TimedContract),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = timed_contract_slots,
};

/* ---- Module ------------------------------------------------------------------------------------------------- */

static PyTypeObject *
add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) < 0) {
        Py_CLEAR(type);
    }
    return type;
}

static int
module_exec(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    static const char *const names[NAMES] = {"forward", "update", "transpose", "split"};
    for (int i = 0; i < NAMES; i++) {
        state->names[i] = PyUnicode_InternFromString(names[i]);
        if (state->names[i] == NULL) {
            return -1;
        }
    }
    state->clock_type = add_type(module, &clock_spec);
    PyType_Spec *others[] = {&timed_spec, &timed_contract_spec};
    for (int i = 0; i < 2; i++) {
        PyTypeObject *type = state->clock_type == NULL ? NULL : add_type(module, others[i]);
        if (type == NULL) {
            return -1;
        }
        Py_DECREF(type);
    }
    if (PyModule_AddIntConstant(module, "HAS_COUNTER", HAS_COUNTER) < 0) {
        return -1;
    }
    static const char *const kinds[KINDS] = {"FORWARD", "UPDATE", "CANONICAL"};
    for (int kind = 0; kind < KINDS; kind++) {
        if (PyModule_AddIntConstant(module, kinds[kind], kind) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->clock_type);
    return 0;
}

static int
module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->clock_type);
    for (int i = 0; i < NAMES; i++) {
        Py_CLEAR(state->names[i]);
    }
    return 0;
}

static void
module_free(void *module)
{
    (void)module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pytest_laguna.engine._replay_clock",
    .m_doc = PyDoc_STR("The clock of the replay profile."),
    .m_size = sizeof(ModuleState),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__replay_clock(void)
{
    return PyModuleDef_Init(&module_definition);
}
