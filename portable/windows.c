/* SPDX-License-Identifier: BSD-3-Clause
 *
 * windows.c: posix.h by calls of Windows. Compiled there alone; its names are strobe__'s, see posix.h. */
#define WIN32_LEAN_AND_MEAN
#include "portable/posix.h"

#include <errno.h>
#include <string.h>
#include <windows.h>

static long long page_bytes(void) {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return system.dwPageSize;
}

/* The largest second-level cache; 0 where Windows does not say. */
static long level2_bytes(void) {
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION found[256];
    DWORD bytes = sizeof found, most = 0;
    if (!GetLogicalProcessorInformation(found, &bytes)) return 0;
    for (size_t n = 0; n < bytes / sizeof found[0]; ++n) {
        const CACHE_DESCRIPTOR *cache = &found[n].Cache;
        if (found[n].Relationship == RelationCache && cache->Level == 2 && cache->Size > most) most = cache->Size;
    }
    return (long)most;
}

long sysconf(int name) {
    MEMORYSTATUSEX memory = {.dwLength = sizeof memory};
    if (name == _SC_PAGESIZE) return (long)page_bytes();
    if (name == _SC_LEVEL2_CACHE_SIZE) return level2_bytes();
    return GlobalMemoryStatusEx(&memory) ? (long)((long long)memory.ullTotalPhys / page_bytes()) : -1;
}

void *dlopen(const char *path, int flags) {
    (void)flags;
    return LoadLibraryA(path);
}

void *dlsym(void *library, const char *symbol) {
    FARPROC found = GetProcAddress(library, symbol);
    void *address;
    memcpy(&address, &found, sizeof address);
    return address;
}

int dlclose(void *library) { return FreeLibrary(library) ? 0 : -1; }

const char *dlerror(void) {
    static _Thread_local char sentence[64];
    snprintf(sentence, sizeof sentence, "error %lu of Windows", GetLastError());
    return sentence;
}

static DWORD protection_of(int protection) {
    if (protection & PROT_WRITE) return PAGE_READWRITE;
    return protection & PROT_READ ? PAGE_READONLY : PAGE_NOACCESS;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, long long offset) {
    if (flags != (MAP_PRIVATE | MAP_ANONYMOUS) || file != -1 || offset != 0) return MAP_FAILED;
    void *memory = VirtualAlloc(address, bytes, MEM_RESERVE | MEM_COMMIT, protection_of(protection));
    return memory ? memory : MAP_FAILED;
}

int mprotect(void *address, size_t bytes, int protection) {
    DWORD before;
    return VirtualProtect(address, bytes, protection_of(protection), &before) ? 0 : -1;
}

int munmap(void *address, size_t bytes) {
    (void)bytes; /* all of it, as it was mapped */
    return VirtualFree(address, 0, MEM_RELEASE) ? 0 : -1;
}

int setenv(const char *name, const char *value, int overwrite) {
    return !overwrite && getenv(name) ? 0 : _putenv_s(name, value) ? -1 : 0;
}

int unsetenv(const char *name) { return _putenv_s(name, "") ? -1 : 0; }

char *mkdtemp(char *path) { return _mktemp(path) && CreateDirectoryA(path, NULL) ? path : NULL; }

int replace_file(const char *from, const char *to) {
    if (MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING)) return 0;
    errno = EACCES;
    return -1;
}

void prepare_streams(void) {
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
    _setmode(_fileno(stderr), _O_BINARY);
    _fmode = _O_BINARY;
    SetConsoleOutputCP(CP_UTF8);
}

void stay_loaded(void) {
    static const char here;
    HMODULE module;
    GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN, &here, &module);
}
