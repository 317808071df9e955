// A stand-in for NVIDIA's driver library, configured by environment variables, for scripts/test-drivers. Needs no GPU.
// Defaults: CUDA 13.0, and one GPU of compute capability 9.0 without a usable context. Compiled with HOLLOW, the
// library has none of the driver's functions.
//
//   DRIVER_VERSION=12040   driver version to report
//   DRIVER_ASKED=34        error of the version query
//   DRIVER_INIT=803        error of the initialisation
//   DRIVER_CARDS=0         number of GPUs
//   DRIVER_CAPABILITY=61   compute capability of the GPUs, times ten
//   DRIVER_CONTEXT=46      error of creating a context

#ifdef HOLLOW
int kept_no_driver(void) { return 0; }
#else

#include <stdio.h>
#include <stdlib.h>

static int told(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuDriverGetVersion(int *version) {
    *version = told("DRIVER_VERSION", 13000);
    return told("DRIVER_ASKED", 0);
}

int cuInit(unsigned flags) {
    (void)flags;
    return told("DRIVER_INIT", 0);
}

int cuDeviceGetCount(int *count) {
    *count = told("DRIVER_CARDS", 1);
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
    snprintf(name, length, "Invented GPU %d", device);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)8 << 30;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    int capability = told("DRIVER_CAPABILITY", 90);
    switch (attribute) {
    case 75: *value = capability / 10; break; // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    case 76: *value = capability % 10; break; // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    default: *value = 65536; break;
    }
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = NULL;
    return told("DRIVER_CONTEXT", 46);
}

// NVIDIA's error strings for the errors of the tests.
int cuGetErrorString(int error, const char **words) {
    switch (error) {
    case 46: *words = "CUDA-capable device(s) is/are busy or unavailable"; return 0;
    case 100: *words = "no CUDA-capable device is detected"; return 0;
    default: *words = NULL; return 1;
    }
}
#endif
