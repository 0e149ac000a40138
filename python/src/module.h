/* SPDX-License-Identifier: BSD-3-Clause
 *
 * module.h: what the files of the extension share: Python's limited API, the state of the module, and errors.
 *
 *     module.c     the module: functions, state, exceptions        tensor.c    any object -> struct tensor, three routes
 *     call.c       forward, backward, explain                      result.c    a new tensor of the caller's framework
 *     keywords.c   arguments by name -> an array of them           exporter.c  memory of ours, offered through __dlpack__
 *     arguments.c  q, k, v and scalars -> strobe_attention         framework.c which route a type's tensors come in by
 *     features.c   the optional structures                         threads.c   how many threads a call has
 *     results.c    results, the caller's or new ones               quantise.c  quantise
 *     rotary.c     rotary embedding of quantise and append         append.c    append
 *     merge.c      merge                                           info.c      kernels, devices, versions
 *     freeze.c     a call without its tensors, as bytes            xla_handler.c  what JAX's programs call
 *     shards.c     a call over many processes                      plain.c     whether anything looks at a call of PyTorch's
 *     aten.c       kernels of PyTorch's operators, without Python: aten_*.c, torch_abi.c */
#ifndef STROBE_PYTHON_MODULE_H
#define STROBE_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000 /* one binary for every CPython from 3.10 */
#endif
#include <Python.h>

#include <stdbool.h>
#include <strobe/strobe.h>

#include "dlpack.h"

/* How tensors of a type come in. */
enum route {
    ROUTE_EXCHANGE, /* the C exchange API of DLPack */
    ROUTE_BUFFER,   /* the buffer protocol */
    ROUTE_CAPSULE   /* __dlpack__() */
};

/* A type that was seen, and what is known of it. */
struct framework {
    PyObject *type; /* NULL: an unused entry */
    enum route route;
    const struct dlpack_exchange_api *api; /* ROUTE_EXCHANGE */
    bool is_torch;                         /* torch.Tensor, or a subclass of it */
    bool is_jax;                           /* jax.Array, or a subclass: nobody may write to one */
    PyObject *is_neg;                      /* PyTorch's method, or NULL */
    PyObject *from_dlpack;                 /* ROUTE_CAPSULE: makes a tensor of the framework; NULL until it is needed */
};

/* When more types than this are in use at the same time, they are looked up again and again. */
enum { FRAMEWORKS = 16 };

struct state {
    PyObject *error; /* strobe.Error */
    PyObject *exporter_type;
    PyObject *argument_names; /* tuple, by enum argument; NULL until the first call */
    PyObject *requires_grad;  /* this name, interned */
    PyObject *swapaxes;       /* and this */
    PyObject *numpy_empty;    /* NULL until a NumPy array was seen */
    PyObject *torch_empty;    /* torch.Tensor.new_empty; NULL until a result of PyTorch's was made */
    PyObject *torch_empty_like;
    PyObject *plain_types; /* plain.c: tuples; NULL until they are given */
    PyObject *questions;
    PyObject *torch_keywords; /* its keywords by the dtype's name: {"float32": {"dtype": torch.float32}} */
    struct framework frameworks[FRAMEWORKS];
    unsigned next_framework; /* the entry that is filled or replaced next */
};

struct state *module_state(PyObject *module);

/* Sets the exception that belongs to a status, with the library's sentence. Always returns NULL. */
PyObject *raise_status(const struct state *state, strobe_status status);
PyObject *raise_sentence(const struct state *state, strobe_status status, const char *sentence);

/* plain.c: whether the tensors are of PyTorch's own types and nothing looks at a call: 1, 0, or -1 with an exception. */
int are_plain(const struct state *state, PyObject *const *tensors, Py_ssize_t count);

/* A function of the module, with positional arguments only; one whose arguments have names too. */
#define FUNCTION(name)          PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count)
#define KEYWORDS_FUNCTION(name) PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
KEYWORDS_FUNCTION(py_attention);          /* call.c */
KEYWORDS_FUNCTION(py_attention_backward); /* call.c */
KEYWORDS_FUNCTION(py_check);              /* call.c */
KEYWORDS_FUNCTION(py_explain);            /* call.c */
KEYWORDS_FUNCTION(py_quantise);           /* quantise.c */
KEYWORDS_FUNCTION(py_mask_lists);         /* mask_lists.c */
KEYWORDS_FUNCTION(py_append);             /* append.c */
KEYWORDS_FUNCTION(py_freeze_attention);   /* freeze.c */
KEYWORDS_FUNCTION(py_freeze_attention_backward);
FUNCTION(py_attention_plain);
FUNCTION(py_xla_handler);     /* xla_handler.c */
FUNCTION(py_arguments);       /* keywords.c */
FUNCTION(py_merge);           /* merge.c */
FUNCTION(py_score_gradients); /* score.c */
FUNCTION(py_kernels);         /* info.c */
FUNCTION(py_devices);         /* info.c */
FUNCTION(py_version);         /* info.c */
FUNCTION(py_build_info);      /* info.c */
FUNCTION(py_set_num_threads); /* threads.c */
FUNCTION(py_get_num_threads); /* threads.c */
FUNCTION(py_share_threads);   /* team.c */
FUNCTION(py_aten_open);       /* aten.c */
FUNCTION(py_aten_open_cuda);
FUNCTION(py_aten_deterministic);
FUNCTION(py_aten_register);
FUNCTION(py_aten_unregister);
FUNCTION(py_aten_calls);
FUNCTION(py_ask_before_plain); /* plain.c */
FUNCTION(py_is_plain);
FUNCTION(py_sdpa_plain);
FUNCTION(py_gpu_transport); /* shards.c */
FUNCTION(py_order_documents);

#endif
