/*
 * A trainer's reader: the routing of a server's answer, checked, and written as another format.
 *
 *     wire FORMAT LAYERS K EXPERTS ROWS < MESSAGE > FILE.npy
 *
 * FORMAT is who wrote the message ("vllm", "sglang", "nemo-rl") or the format's name; ROWS is the
 * number of tokens less one, 0 if that is not known. The message is decoded as it arrives. What is
 * not k distinct experts is missing, and told on standard error.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <routecap.h>

static int failed(const char *call, int32_t status) {
    fprintf(stderr, "%s: %s: %s\n", call, routecap_status_name(status), routecap_last_error());
    return 1;
}

static void tell(const routecap_wire_report *r) {
    fprintf(stderr,
            "%" PRIu64 " rows of %u columns; cells: %" PRIu64 " valid, %" PRIu64
            " negative, %" PRIu64 " zero, %" PRIu64 " out of range, %" PRIu64 " duplicate\n",
            r->rows, r->columns, r->cells_valid, r->cells_negative, r->cells_zero,
            r->cells_out_of_range, r->cells_duplicate);
    if (r->rows_repeated + r->rows_counting > 0)
        fprintf(stderr,
                "perhaps made up: %" PRIu64 " rows repeat the one before, %" PRIu64
                " count from 0\n",
                r->rows_repeated, r->rows_counting);
    if (r->layers_empty + r->columns_in_use > 0)
        fprintf(
            stderr,
            "%u layers are empty, %u columns that are left out hold routing: is the layer map right?\n",
            r->layers_empty, r->columns_in_use);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: %s FORMAT LAYERS K EXPERTS ROWS < MESSAGE > FILE.npy\n", argv[0]);
        return 2;
    }
    int32_t format, status = routecap_wire_find(argv[1], &format);
    if (status < 0) return failed("find", status);

    routecap_wire_hint hint = {0};
    hint.struct_size = sizeof hint;
    hint.layers = (uint32_t)strtoul(argv[2], NULL, 10);
    hint.k = (uint32_t)strtoul(argv[3], NULL, 10);
    hint.experts = (uint32_t)strtoul(argv[4], NULL, 10);
    hint.rows = strtoull(argv[5], NULL, 10);
    hint.budget_bytes = (uint64_t)1 << 30; /* whatever the message claims */

    routecap_wire_decoder *decoder;
    routecap_routing *routing = NULL;
    status = routecap_wire_decoder_create(format, &hint, &decoder);
    if (status < 0) return failed("create", status);
    static char piece[65536];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0 && status >= 0)
        status = routecap_wire_decoder_write(decoder, piece, n);
    routecap_wire_report report = {0};
    report.struct_size = sizeof report;
    if (status >= 0) status = routecap_wire_decoder_finish(decoder, &report, &routing);
    routecap_wire_decoder_free(decoder);
    if (status < 0) return failed("decode", status);
    tell(&report);

    /* int16, so that missing cells are -1. That they are missing for different reasons is the only
     * thing that a .npy file cannot say of them. */
    routecap_wire_options options = {0};
    options.struct_size = sizeof options;
    options.format = ROUTECAP_WIRE_NPY;
    options.dtype = ROUTECAP_DTYPE_I16;
    options.allow = ROUTECAP_WIRE_FACT_REASONS;
    uint64_t bytes = 0;
    status = routecap_wire_encode(routing, &options, NULL, 0, &bytes, NULL);
    void *message = status == ROUTECAP_ERR_BUFFER_TOO_SMALL ? malloc(bytes) : NULL;
    if (message != NULL)
        status = routecap_wire_encode(routing, &options, message, bytes, NULL, NULL);
    routecap_routing_free(routing);
    if (status < 0) return failed("encode", status);
    const int written = fwrite(message, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
    free(message);
    return written ? 0 : 1;
}
