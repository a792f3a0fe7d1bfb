/*
 * The turns of a conversation: a sequence compares their token ids and joins their rows. Here rows
 * are computed from the token ids. In an engine they come with a server's answer.
 */
#include <routecap.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int32_t status) {
    if (status < 0) fprintf(stderr, "%s\n", routecap_last_error()), exit(1);
}

/* A turn's routing, of one layer: S tokens have S-1 rows. */
static routecap_routing *answer(const int32_t *tokens, uint64_t count) {
    uint8_t ids[64][2];
    for (uint64_t row = 0; row + 1 < count; row++)
        ids[row][0] = (uint8_t)(tokens[row] % 5), ids[row][1] = (uint8_t)(5 + tokens[row] % 3);
    routecap_segment rows = {.rows = count - 1, .ids = ids};
    routecap_view view = {.struct_size = sizeof view,
                          .dtype = ROUTECAP_DTYPE_U8,
                          .layers = 1,
                          .k = 2,
                          .experts = 8,
                          .rows = count - 1,
                          .segments = &rows,
                          .segment_size = sizeof rows,
                          .segment_count = 1};
    routecap_routing *routing;
    check(routecap_routing_import(&view, 0, NULL, NULL, &routing));
    return routing;
}

int main(void) {
    const int32_t first[] = {11, 12, 13, 21, 22}, second[] = {11, 12, 13, 21, 22, 31, 32, 23};
    routecap_sequence_config config = {
        .struct_size = sizeof config, .layers = 1, .k = 2, .experts = 8};
    routecap_sequence *sequence;
    check(routecap_sequence_create(&config, &sequence));

    routecap_append_report report = {.struct_size = sizeof report};
    routecap_routing *routing = answer(first, 5);
    check(routecap_sequence_append(sequence, first, 0, 5, routing, NULL, NULL));
    routecap_routing_free(routing);
    routing = answer(second, 8);
    int32_t status = routecap_sequence_append(sequence, second, 0, 8, routing, NULL, &report);
    routecap_routing_free(routing);
    printf("%d tokens were known, %d rows are new\n", (int)report.tokens_common,
           (int)report.rows_taken);

    check(routecap_sequence_routing(sequence, &routing));
    routecap_view view = {.struct_size = sizeof view};
    check(routecap_routing_view(routing, &view));
    printf("%d rows, all there: %d\n", (int)view.rows, view.complete);
    int ok = status == ROUTECAP_OK && report.tokens_common == 5 && view.rows == 7 && view.complete;
    routecap_routing_free(routing);
    routecap_sequence_free(sequence);
    return !ok;
}
